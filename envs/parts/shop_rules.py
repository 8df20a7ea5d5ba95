"""What webshop.py takes from WebShop as it is: what a purchase earns, how its files are read.

    reward_of(product, ["navy", "medium"], goal)    -> 0.75: three of four wishes met
    shop = read_shop(Path("webshop/data"))          the files that AgentGym's setup.sh fetches

After web_agent_site/engine/{goal,normalize,engine}.py of github.com/princeton-nlp/WebShop and of
its copy in AgentGym (agentenv-webshop, 3ef9235), read for what they do; the code is our own.
"""
import functools
import itertools
import json
import random
import re

from envs.parts.products import CATEGORIES, STOP, Goal, Product, Shop, price_limit, price_words

COLORS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze
    brown burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
    cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold
    granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
    leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
    mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust
    sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger
    turquoise violet walnut wheat white wine yellow""".split()     # WebShop's, in its order


def likeness(a, b):
    """100 * 2 * (longest common subsequence) / (both lengths): thefuzz's ratio of two strings."""
    places, row = {}, (1 << len(a)) - 1      # Hyyrö's bit-parallel rows: a bit is a letter of a
    for i, letter in enumerate(a):
        places[letter] = places.get(letter, 0) | 1 << i
    for letter in b:
        hits = row & places.get(letter, 0)
        row = (row + hits) | (row - hits)
    common = len(a) - (row & (1 << len(a)) - 1).bit_count()
    return 200 * common / (len(a) + len(b))


@functools.lru_cache(16384)
def alike(a, b):
    """Whether thefuzz's token_set_ratio(a, b) > 85: of the words that both have alone, and of these
    with the other words of a, and of b, any two are compared."""
    one, two = (set(re.findall(r"[^\W_]+", text[:200].lower())) for text in (a, b))
    if not one or not two:
        return False
    both = " ".join(sorted(one & two))
    texts = [" ".join([both, *sorted(words)]).strip() for words in (one - two, two - one)]
    pairs = [(texts[0], texts[1])] + [(both, text) for text in texts] * bool(both)
    return round(max(likeness(*pair) for pair in pairs)) > 85


def plain_color(option):
    """The first of COLORS that stands in it, or the option as it is."""
    return next((color for color in COLORS if color in option), option)


def title_words(title):
    """All but stop words, where WebShop asks a tagger for the nouns."""
    return [word for word in re.findall(r"[a-z]+", title.lower())
            if len(word) > 2 and word not in STOP]


def type_factor(bought, wanted):
    """1, 0.5, 0.1 or 0: how far the product bought is of the kind of the one wanted."""
    words = title_words(wanted.title)
    shared = len(set(words) & set(title_words(bought.title))) / len(words) if words else 0.2
    levels, others = ({level.strip() for level in product.product_category.split("›")}
                      for product in (bought, wanted))
    if shared < 0.1:
        return 0.1 if shared else 0.0
    same = bought.query == wanted.query or len(levels & others) >= 2 or shared > 0.2
    return 1.0 if same else 0.5


def reward_of(product, chosen, goal):
    """What buying the product with these values of its options earns: 0..1."""
    text = [product.title.lower(), " ".join(product.bullets).lower(), product.description.lower()]
    met = sum(any(alike(own, wish) for own in product.attributes) or any(wish in x for x in text)
              for wish in goal.attributes)
    colors = [plain_color(value) for value in chosen]
    met += sum(any(alike(color, plain_color(wish)) for color in colors) for wish in goal.options)
    met += product.price <= goal.limit
    wishes = len(goal.attributes) + len(goal.options) + 1
    return met / wishes * type_factor(product, goal.product)


# ---- the files ----------------------------------------------------------------------------------

def read_shop(folder):
    """The Shop of a folder with WebShop's items_shuffle*.json (products), items_ins_v2*.json (their
    attributes) and, if there, items_human_ins.json.

    Goals: the human instructions, where their file is there. Without it those that AgentGym
    serves, made from items_ins_v2*.json: an instruction with every combination of options, in
    AgentGym's order, so that task ids mean there what they mean here. Splits as WebShop's: 0..499
    TEST, 500..1499 neither, the others TRAIN; of 1500 goals or fewer a tenth is TEST. As much
    memory as the products' JSON takes: 1,000 are fine, all 1.18 million are not.

    ValueError: the file, item and field that are wrong, and what was expected.
    """
    items = read_json(folder, "items_shuffle*.json", list)
    known = read_json(folder, "items_ins_v2*.json", dict)
    human = {}
    if (folder / "items_human_ins.json").exists():
        human = read_json(folder, "items_human_ins.json", dict)
    products = {}
    for i, item in enumerate(items):
        product = read_product(item, known, f"{folder}: items_shuffle*.json, item {i}")
        if product.asin != "nan" and len(product.asin) <= 10:
            products.setdefault(product.asin, product)
    rng, order, goals = random.Random(233), random.Random(233), []      # AgentGym's seeds
    for product in products.values():
        if human:
            goals += human_goals(rng, product, human.get(product.asin, []), folder)
        else:
            goals += combined_goals(rng, product, known.get(product.asin, {}), folder)
    if len(goals) < 2:
        raise ValueError(f"webshop: {folder} holds {len(products)} products and {len(goals)} "
                         "goals; expected an instruction for two products or more")
    order.shuffle(goals)
    few, n = len(goals) <= 1500, len(goals)
    train, test = (range(max(1, n // 10), n), range(max(1, n // 10))) if few else \
        (range(1500, n), range(500))
    return Shop([*products.values()], goals, train, test)


def read_json(folder, pattern, kind):
    """The content, of this type, of the one file in the folder whose name fits the pattern."""
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise ValueError(f"webshop: {folder} needs one file {pattern}; there is {names}")
    try:
        content = json.loads(paths[0].read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"webshop: {paths[0]} is no JSON: {problem}") from None
    return checked(content, kind, str(paths[0]))


def checked(value, kind, where):
    """The value, if it is of this type (a list of one: a list of such). ValueError: it is not."""
    fits = isinstance(value, list) and all(isinstance(x, kind[0]) for x in value) \
        if isinstance(kind, list) else isinstance(value, kind)
    if not fits:
        name = f"list of {kind[0].__name__}" if isinstance(kind, list) else kind.__name__
        raise ValueError(f"webshop: {where} is {str(value)[:60]!r}; expected a {name}")
    return value


def read_product(item, known, where):
    """A Product from one item of items_shuffle*.json; known: items_ins_v2*.json."""
    checked(item, dict, where)
    text = {key: checked(item.get(key), str, f"{where}, {key},")
            for key in ("asin", "name", "category", "query", "product_category")}
    if text["category"] not in CATEGORIES:
        raise ValueError(f"webshop: {where}, category, is {text['category'][:60]!r}; expected one "
                         f"of {', '.join(CATEGORIES)}")
    bullets = item.get("small_description") or ""
    bullets = checked(bullets if isinstance(bullets, list) else [bullets], [str],
                      f"{where}, small_description,")
    try:
        prices = [float(re.sub(r"[^\d.]", "", part))
                  for part in (item.get("pricing") or "$100.0").split("$")[1:]][:2]
        tag, price = " to ".join(f"${p}" for p in prices), prices[0]
    except (ValueError, IndexError, AttributeError):
        raise ValueError(f"webshop: {where}, pricing, is {str(item['pricing'])[:60]!r}; expected "
                         'prices such as "$9.99$15.49"') from None
    if len(prices) == 2:        # WebShop draws it anew at every start
        price = random.Random(text["asin"]).uniform(*prices)
    groups = checked(item.get("customization_options") or {}, dict,
                     f"{where}, customization_options,")
    options = {name.lower(): [
        checked(choice.get("value"), str, f"{where}, {name}, value,").strip().replace("/", " | ")
        .lower() for choice in checked(choices, [dict], f"{where}, {name},")]
        for name, choices in groups.items() if choices is not None}
    about = checked(known.get(text["asin"], {}), dict, f"items_ins_v2*.json, {text['asin']},")
    attributes = checked(about.get("attributes", ["DUMMY_ATTR"]), [str], f"{where}, attributes,")
    description = checked(item.get("full_description") or "", str, f"{where}, full_description,")
    return Product(text["asin"], text["name"], text["category"], text["query"].lower().strip(),
                   text["product_category"], description, bullets, tag, price, attributes, options)


def combined_goals(rng, product, about, folder):
    """A goal for every combination of the product's options; none without an instruction."""
    if about.get("instruction") is None:
        return []
    where = f"{folder}: items_ins_v2*.json, {product.asin},"
    said = checked(about["instruction"], str, f"{where} instruction,")
    attributes = checked(about.get("instruction_attributes"), [str],
                         f"{where} instruction_attributes,")
    limit = price_limit(rng, product.price)
    goals, names = [], sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        wish = ", and ".join(f"{name}: {value}" for name, value in zip(names, values))
        goals.append(Goal(product, said + f" with {wish}" * bool(wish) + price_words(limit),
                          attributes, [*values], limit))
    return goals


def human_goals(rng, product, found, folder):
    """A goal for each of the human instructions for this product that name an attribute."""
    goals, where = [], f"{folder}: items_human_ins.json, {product.asin},"
    for wish in checked(found, [dict], where):
        attributes = checked(wish.get("instruction_attributes"), [str],
                             f"{where} instruction_attributes,")
        options = checked(wish.get("instruction_options"), [str], f"{where} instruction_options,")
        said = checked(wish.get("instruction"), str, f"{where} instruction,")
        if attributes:
            limit = price_limit(rng, product.price)
            goals.append(Goal(product, said.strip(".") + price_words(limit), attributes, options,
                              limit))
    return goals
