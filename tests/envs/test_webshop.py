"""pytest tests/envs/test_webshop.py: pages, their HTML, the reward, search, our catalogue,
files."""
import functools
import json
import random
import re
from collections import Counter

import pytest
from lxml import html
from players import bm25, play, wire

from chat import make_tokenizer
from envs import open_env, tools_of, webshop, webshop_small
from envs.parts.products import CATEGORIES, Goal, Product, Shop, make_shop
from envs.parts.shop_rules import alike, likeness, read_shop, reward_of, type_factor

# ---- WebShop as it was recorded -----------------------------------------------------------------

# From a trajectory of AgentGym's that several projects show as their example.
ITEM = dict(
    asin="B000VOHH8I", category="beauty", query="men's fragrance", pricing="$64.98",
    name="L'eau D'issey By Issey Miyake for MenEau De Toilette Spray, 6.7 Fl Oz Bottle",
    product_category="Beauty › Fragrance › Men's › Eau de Toilette", full_description="A scent.",
    small_description=["Long lasting", "For men"], images=["x.jpg"], customization_options={
        "Size": [{"value": "2.5 Fl Oz"}, {"value": "6.76 Fl Oz (Pack of 1)", "image": "y.jpg"}],
        "Color": None})
WISH = "i need a long lasting 6.76 fl oz bottle of l'eau d'issey"
HUMAN = dict(instruction=WISH + ".", instruction_attributes=["long lasting"],
             instruction_options=["6.76 fl oz (pack of 1)"])
ASKED = f"Instruction: [SEP] {WISH}, and price lower than 100.00 dollars"
SEARCH_PAGE = f"WebShop [SEP] {ASKED} [SEP] Search"
RESULTS_PAGE = (f"{ASKED} [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] B000VOHH8I "
                f"[SEP] {ITEM['name']} [SEP] $64.98 [SEP] B000000002 [SEP] Bath Salt [SEP] $64.98")
ITEM_PAGE = (f"{ASKED} [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] 2.5 fl oz [SEP] 6.76 fl "
             f"oz (pack of 1) [SEP] {ITEM['name']} [SEP] Price: $64.98 [SEP] Rating: N.A. [SEP] "
             "Description [SEP] Features [SEP] Reviews [SEP] Buy Now")
LAST_PAGE = (
    "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk "
    "interface.) [SEP] Purchased [SEP] asin [SEP] B000VOHH8I [SEP] options [SEP] {\"size\": \"6.76 "
    "fl oz (pack of 1)\"} [SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None "
    "[SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] "
    "price upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query [SEP] "
    "Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP] Reward "
    "Details [SEP] None")


def write_files(folder, items=(ITEM, ITEM | dict(asin="B000000002", name="Bath Salt")), known=None,
                human=None):
    (folder / "items_shuffle_1000.json").write_text(json.dumps(items))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(known or {}))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human))
    return folder


def test_step_shows_the_recorded_pages(tmp_path):
    """The limit is drawn among four: 100 is the one recorded."""
    env = webshop.Env(write_files(tmp_path, human={"B000VOHH8I": [HUMAN], "B000000002": [HUMAN]}))
    task = [goal.product.asin for goal in env.shop.goals].index("B000VOHH8I")
    goal = env.shop.goals[task]
    env.shop.goals[task] = goal._replace(
        limit=100.0, instruction=goal.instruction.replace(f"{goal.limit:.2f}", "100.00"))
    assert env.reset(task) == SEARCH_PAGE
    answers = [env.step(action) for action in (
        "search[l'eau d'issey 6.76 fl oz bottle price < 100.00]", "click[B000VOHH8I]",
        "click[6.76 fl oz (pack of 1)]", "click[Buy Now]")]
    assert [answer[0] for answer in answers] == [RESULTS_PAGE, ITEM_PAGE, ITEM_PAGE, LAST_PAGE]
    assert [answer[1:3] for answer in answers] == [(0, False)] * 3 + [(1, True)]
    assert answers[-1][3] == dict(success=True, valid=True, score=1.0)


def test_server_speaks_webshops_wire():
    ask, player = wire("webshop"), webshop.Env()
    assert ask("/create", {}) == 0
    first, search = player.reset(7), dict(has_search_bar=True, clickables=["search"])
    assert ask("/reset", dict(env_idx=0, session_id=7)) == [first, None]
    wish = f"Instruction: {player.goal.instruction}"
    assert ask("/instruction_text?env_idx=0") == wish
    assert ask("/available_actions?env_idx=0") == search
    assert read_html(ask("/state?env_idx=0")["html"]) == (first, search)
    for action, seen, reward, done, info in play(player):
        assert ask("/step", dict(env_idx=0, action=action)) == dict(
            state=seen, reward=reward, done=done, info=info)
        state = ask("/state?env_idx=0")
        assert list(state) == ["url", "html", "instruction_text"]
        assert state["instruction_text"] == wish
        assert ask("/observation?env_idx=0") == seen
        assert read_html(state["html"]) == (seen, ask("/available_actions?env_idx=0"))
    assert reward == 1 and state["url"].startswith("http://127.0.0.1:3000/done/7/B0")


def test_tools_of_webshop_are_agentgyms_functions():
    tools = tools_of(webshop)
    assert {name: form.format(keywords="tea", item="tea") for name, (form, _) in tools.items()} == {
        "search": "search[tea]", "click": "click[tea]"}


# ---- actions ------------------------------------------------------------------------------------

def at(page, task=3):
    """(an Env on this page, its text)"""
    env = webshop.Env()
    env.reset(task)
    if page != "search":
        env.step("search[oat crackers]")
    if page == "item":
        env.step(f"click[{env.browser.results[0].asin}]")
    return env, webshop.text_of(env.browser.nodes)


@pytest.mark.parametrize("page, action, effect", [
    ("search", "search[tea]", "done"), ("results", "click[NEXT >]", "done"),
    ("item", "search[tea]", "done"),                    # without a search bar, as in the original
    ("item", "  click[ Features ]\n", "done"),
    ("item", "click[Features]. It may say so.", "done"),        # the original allows it
    ("item", "click[buy now", "not understood"), ("item", "Click[Features]", "not understood"),
    ("item", "press[Features]", "not understood"), ("item", "I click[Features]", "not understood"),
    ("item", "click[Features] click[Reviews]", "not understood"),
    ("item", "click[Features]\nclick[Reviews]", "not understood"),
    ("item", "click[Next >]", "wrong argument"), ("item", "click[B0NOWHERE]", "wrong argument"),
    ("item", "click[]", "wrong argument"), ("search", "search[ ]", "wrong argument"),
    ("search", "click[search]", "wrong argument"),
    ("results", "click[< Prev]", "wrong argument"),         # there is none on the first page
])
def test_act_tells_done_wrong_argument_and_not_understood_apart(page, action, effect):
    env, before = at(page)
    observation, reward, done, info = env.step(action)
    assert (reward, done, info["success"]) == (0, False, False)
    assert info["valid"] == (effect == "done")
    if effect == "done":
        assert observation != before
    else:       # AgentGym's client writes "Invalid Action." where it finds none in a reply
        assert observation == ("Invalid Action.\n\n" if effect == "not understood" else "") + before
        assert webshop.text_of(env.browser.nodes) == before


def test_click_leads_through_the_shop_and_back():
    env, first = at("results")
    second, *_ = env.step("click[Next >]")
    asin = env.browser.results[12].asin
    assert f"Page 2 (Total results: {len(env.browser.results)}) [SEP] < Prev [SEP]" in second
    assert env.url() == "http://127.0.0.1:3000/search_results/3/oat+crackers/2"
    item, *_ = env.step(f"click[{asin.lower()}]")
    for name in ("Description", "Features", "Reviews"):
        page, *_ = env.step(f"click[{name}]")
        texts = dict(Description=[env.browser.product.description],
                     Features=env.browser.product.bullets, Reviews=["No reviews found"])[name]
        assert page == " [SEP] ".join(["Instruction:", env.goal.instruction, "Back to Search",
                                       "< Prev", *texts])
        assert env.step("click[< Prev]")[0] == item
    assert env.step("click[< Prev]")[0] == second
    assert env.step("click[< Prev]")[0] == first
    assert env.step("click[Back to Search]")[0] == env.reset(3)
    assert env.url() == "http://127.0.0.1:3000/3"


# ---- HTML ---------------------------------------------------------------------------------------

def read_html(text):
    """(observation, the answer to /available_actions) as the original makes them of the HTML."""
    page = html.document_fromstring(text)
    clickables = [x.text.lower() for kind in ("btn", "product-link") for x in page.find_class(kind)]
    return " [SEP] ".join(filter(None, map(str.strip, page.itertext()))), dict(
        has_search_bar=bool(page.cssselect("#search_input")),
        clickables=clickables + page.xpath("//input[@type='radio']/@value"))


NASTY = ITEM | dict(
    name="<script>alert(1)</script> {text} & \"soap\"", asin="<b>B0<b>",
    full_description=" --><img src=x onerror=alert(1)>\ud800",
    small_description=["<style>*{}", " "],
    customization_options={"\"><svg onload=x>": [{"value": "'\"><i>x</i>"}, {"value": "[eu] 4"}]})


def test_html_never_makes_markup_of_a_product(tmp_path):
    wish = dict(instruction="<iframe src=x> {reward} %s", instruction_attributes=["<a>"],
                instruction_options=["'\"><i>x< | i>"])
    env = webshop.Env(write_files(tmp_path, [NASTY, NASTY | dict(asin="B2")],
                                  human={NASTY["asin"]: [wish], "B2": [wish]}))
    env.reset([goal.product.asin for goal in env.shop.goals].index(NASTY["asin"]))
    pages = []
    for action in ("search[soap/../<b>?]", "click[<b>B0<b>]", "click[Description]",
                   "click[< Prev]", "click[Features]", "click[< Prev]", "click[[eu] 4]",
                   "click['\"><i>x< | i>]", "click[Buy Now]"):
        observation, reward, done, info = env.step(action)
        assert info["valid"], action
        read = observation.replace("\ud800", "")       # lxml reads over half a surrogate pair
        assert read_html(env.html()) == (read, env.available_actions())
        assert {x.tag for x in html.document_fromstring(env.html()).iter()} <= {
            "html", "body", "div", "h2", "h4", "h5", "p", "br", "button", "a", "input", "label"}
        assert not {*"<>?'\""} & {*env.url()} and "/.." not in env.url()
        pages.append(observation)
    assert done and NASTY["name"] in pages[1] and NASTY["full_description"].strip() in pages[2]
    assert json.dumps({'"><svg onload=x>': "'\"><i>x< | i>"}) in pages[-1]


# ---- the reward ---------------------------------------------------------------------------------

def product(**fields):
    return Product(**dict(
        asin="B0", title="Name 1", category="beauty", query="query 1", product_category="a › b › c",
        description="", bullets=[], tag="$35.0", price=35.0, attributes=[], options={}) | fields)


def wanted(like=None, attributes=(), options=(), limit=40.0):
    return Goal(like or product(), "", [*attributes], [*options], limit)


OILS = ["tea tree", "essential oils", "natural ingredients"]
SHAMPOO = dict(bullets=["This shampoo has essential oils and smells like lemons"],
               description="Best shampoo on the market, made with natural ingredients")


@pytest.mark.parametrize("bought, chosen, goal, reward", [      # figures of WebShop's own tests
    (dict(attributes=["tea tree", "essential oil", "natural ingredients"]), ["grey", "XL"],
     wanted(attributes=OILS, options=["grey", "XL"]), 1),
    (SHAMPOO, ["grey", "XL"], wanted(attributes=OILS, options=["grey", "XL", "pack of 12"]),
     (2 + 2 + 1) / 7),
    ({}, ["pack of 12", "powder snow"], wanted(options=["cool powder snow", "XL", "pack of 12"]),
     (2 + 1) / 4),
    ({}, ["one", "two"], wanted(), 1),
    (dict(price=40.01), [], wanted(attributes=["x"]), 0), (dict(price=40.0), [], wanted(), 1),
])
def test_reward_of_counts_attributes_options_and_price(bought, chosen, goal, reward):
    assert reward_of(product(**bought), chosen, goal) == pytest.approx(reward)


CORD = "BRST AC Power Cord Outlet Socket Cable Plug Lead Panasonic DVD Combo Home Theater System"
KNOB = "Saireed Power Kitchen Bath Cabinet Knob Soundbar Listed"    # one word of eight is CORD's


@pytest.mark.parametrize("bought, goal, factor", [
    ({}, {}, 1),
    (dict(query="query 2", product_category="d › e › f"), {}, 1),       # all title words
    # two levels of the category, in any order; one level twice
    (dict(title=CORD, query="2", product_category="c › b › x"), dict(title=KNOB), 1),
    (dict(title=CORD, query="2", product_category="a › a › x"), dict(title=KNOB), 0.5),
    (dict(title=CORD), dict(title=KNOB), 1),
    (dict(title=CORD), dict(title=f"{KNOB} Tall Brown Wide"), 0.1),     # the query does not help
    (dict(title="Eyebrow Tweezers"), dict(title="Kitchen Cabinet Knob"), 0),
    (dict(title="Eyebrow Tweezers"), dict(title="the 4 x 6"), 1),       # no word: taken for 0.2
])
def test_type_factor_by_hand(bought, goal, factor):
    assert type_factor(product(**bought), product(**goal)) == factor


@pytest.mark.parametrize("a, b, fits", [
    ("essential oil", "essential oils", True),
    ("large", "x-large", True),                # its words are all there: WebShop's rule, too
    ("pack of 6", "pack of 12", True),         # 2 * 7 / (7 + 9) = 87.5 for "of pack", "of pack 6"
    ("6 pack", "12 pack", False),              # 2 * 5 / (6 + 7) = 77
    ("abcdefghijklmnopqrst", "abcdefghijklmnopq123", False),        # 2 * 17 / 40 = 85
    ("red", "bed", False), ("", "", False), ("!", "!", False), ("tea", "", False),
    ("Gluten-Free", "free gluten", True)])
def test_alike_by_hand(a, b, fits):
    assert alike(a, b) == alike(b, a) == fits


@pytest.mark.parametrize("a, b, common", [       # the longest common subsequence
    ("abcde", "xaxcxe", 3), ("abcdef", "fedcba", 1), ("pack of 6", "6 pack of", 7), ("", "a", 0),
    ("ab" * 40, "ba" * 40, 79), ("tea tree oil", "oil tea tree", 8)])
def test_likeness_counts_the_longest_common_subsequence(a, b, common):
    assert likeness(a, b) == pytest.approx(200 * common / (len(a) + len(b)))


# ---- search -------------------------------------------------------------------------------------

DOCS = ["red red lamp", "lamp", "red cup cup cup and a very long text about it", "blue cup", "cup",
        "blue blue lamp shade"]


@pytest.mark.parametrize("query", ["red", "blue lamp", "shade cup", "red blue", "text", "nothing"])
def test_search_ranks_by_bm25(query):
    shop = Shop([product(asin=i, title=text) for i, text in enumerate(DOCS)], [], [], [])
    words = [(Counter(text.split()), len(text.split())) for text in DOCS]
    assert [found.asin for found in shop.search(query)] == bm25(words, query.split())


def test_search_reads_the_first_feature_and_forty_letters_of_a_word():
    found = Shop([product(asin="x", title="a" * 40, bullets=["first", "second"])], [], [], [])
    assert found.search("first") and not found.search("second")
    assert found.search("a" * 41) and not found.search("a" * 39)


# ---- our catalogue ------------------------------------------------------------------------------

@functools.cache
def shop():
    return make_shop()


def test_make_shop_has_a_thousand_products_and_no_wish_in_both_splits():
    assert len({p.asin for p in shop().products}) == len(shop().products) == 1000
    assert all(re.fullmatch("B0[A-Z]{8}", p.asin) for p in shop().products)
    wished = {split: {goal.product.asin for goal in map(shop().goals.__getitem__, ids)}
              for split, ids in (("TRAIN", webshop.TRAIN), ("TEST", webshop.TEST))}
    assert (len(wished["TRAIN"]), len(wished["TEST"])) == (900, 100)
    assert not wished["TRAIN"] & wished["TEST"]
    assert (shop().train, shop().test) == (webshop.TRAIN, webshop.TEST)
    assert len({goal.instruction for goal in shop().goals}) == len(shop().goals) == 6910
    assert {webshop.family(i) for i in range(500, 505)} == {*CATEGORIES}


def test_make_goal_says_its_wishes_as_one_says_them():
    for goal in shop().goals:
        words = [goal.product.query, *goal.attributes]
        assert all(word in goal.instruction for word in (*words, *goal.options))
        end = max(goal.instruction.rfind(word) + len(word) for word in words)
        assert re.match(r"\)?(, | in | with )", goal.instruction[end:]), goal.instruction
        assert goal.instruction.endswith(f", and price lower than {goal.limit:.2f} dollars")
        highest = max(float(price) for price in re.findall(r"\$([0-9.]+)", goal.product.tag))
        assert goal.product.price <= highest < goal.limit <= highest + 40
        assert set(goal.attributes) <= set(goal.product.attributes)
        assert all(value in values for value, values in zip(
            goal.options, goal.product.options.values(), strict=True))


# ---- players ------------------------------------------------------------------------------------

def test_expert_buys_what_every_test_task_asks_for():
    env = webshop.Env()
    games = [play(env, task, webshop.HORIZON) for task in webshop.TEST]
    assert all(info["score"] == 1 for *_, (*_, info) in games)
    assert 5 < sum(map(len, games)) / len(games) < 6.5 and max(map(len, games)) <= 8


def test_choices_takes_the_option_in_the_wishs_own_words():
    """WebShop's rule would take "x-large", too."""
    env = webshop.Env()
    env.reset(0)
    env.goal = env.goal._replace(options=["large"])
    assert env.choices(product(options={"size": ["x-large", "large"]})) == ["large"]
    assert env.choices(product(options={"size": ["x-large", "small"]})) == ["x-large"]
    assert env.choices(product(options={"size": ["small"]})) is None


# ---- WebShop's files ----------------------------------------------------------------------------

def many_items(n):
    """Items and their items_ins_v2: every third without an instruction, every fifth a range."""
    items, known = [], {}
    for i in range(n):
        asin = f"B{i:09}"
        prices = f"${i + 3}.5" + f"${i + 9}.25" * (i % 5 == 0)
        options = {"Size": [{"value": f"{i}/{x}"} for x in "AB"], "Color": [{"value": " Red "}]}
        items.append(ITEM | dict(asin=asin, name=f"Thing {i}", pricing=prices,
                                 customization_options=options if i % 2 else None))
        known[asin] = dict(attributes=["long lasting"], instruction=f"Find me thing {i}",
                           instruction_attributes=["long lasting"]) if i % 3 else \
            dict(attributes=["soft"], instruction=None, instruction_attributes=None)
    return items, known


def test_read_shop_numbers_the_goals_as_agentgym(tmp_path):
    """Its seed and its order of draws, written down plainly; for the products of one price, since
    there a price within a range is drawn anew at every start."""
    items, known = many_items(60)
    found = read_shop(write_files(tmp_path, items, known))
    texts, rng = [], random.Random(233)
    for i in [i for i in range(60) if i % 3]:
        prices = [10.0 * x for x in range(1, 100) if 10.0 * x > i + 3.5][:4]
        _, upper = sorted(rng.sample(prices, 2))
        for size in (f"{i} | a", f"{i} | b") if i % 2 else (None,):
            options = f" with color: red, and size: {size}" if size else ""
            texts.append(
                (i, f"Find me thing {i}{options}, and price lower than {upper:.2f} dollars"))
    random.Random(233).shuffle(texts)
    assert [int(goal.product.asin[1:]) for goal in found.goals] == [i for i, _ in texts]
    assert all(goal.instruction == text for goal, (i, text) in zip(found.goals, texts) if i % 5)
    assert len(texts) == 60 and (found.test, found.train) == (range(6), range(6, 60))


def test_read_shop_reads_prices_options_and_texts(tmp_path):
    items, known = many_items(12)
    items[1] |= dict(pricing="", small_description="One text", full_description=None)
    items += [items[2] | dict(name="a second one"), ITEM | dict(asin="B0000000011"),
              ITEM | dict(asin="nan")]
    found = read_shop(write_files(tmp_path, items, known))
    assert len(found.products) == 12
    zero, one, two, three = found.products[:4]
    assert (one.tag, one.price, one.bullets, one.description) == ("$100.0", 100.0, ["One text"], "")
    assert (two.title, two.tag, two.price) == ("Thing 2", "$5.5", 5.5)
    assert three.options == {"size": ["3 | a", "3 | b"], "color": ["red"]} and two.options == {}
    assert zero.tag == "$3.5 to $9.25" and 3.5 <= zero.price <= 9.25
    assert (zero.query, zero.attributes) == ("men's fragrance", ["soft"])


@pytest.mark.parametrize("file, change, sentence", [
    ("items_shuffle_1000.json", "{}", "items_shuffle_1000.json is '{}'; expected a list"),
    ("items_shuffle_1000.json", "[" * 100_000, "items_shuffle_1000.json is no JSON"),
    ("items_ins_v2_1000.json", None, r"needs one file items_ins_v2\*.json; there is none"),
    ("items_ins_v2.json", "{}", "there is items_ins_v2.json, items_ins_v2_1000.json"),
    ("items_ins_v2_1000.json", {}, "2 products and 0 goals"),
    ("items_ins_v2_1000.json", {"B000VOHH8I": dict(instruction="x", instruction_attributes=[5])},
     "B000VOHH8I, instruction_attributes, is '.5.'; expected a list of str"),
    ("items_human_ins.json", {"B000VOHH8I": [HUMAN | dict(instruction_options="red")]},
     "items_human_ins.json, B000VOHH8I, instruction_options, is 'red'; expected a list of str"),
    *(("items_shuffle_1000.json", [ITEM, ITEM | {field: wrong}], f"item 1, {name}.* is .*; expect")
      for field, wrong, name in [
          ("asin", None, "asin"), ("category", "toys", "category"), ("pricing", "free", "pricing"),
          ("pricing", 5, "pricing"), ("small_description", [None], "small_description"),
          ("customization_options", {"size": [{"value": 5}]}, "size, value")]),
])
def test_read_shop_names_the_file_the_item_and_the_field(tmp_path, file, change, sentence):
    write_files(tmp_path)
    if change is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(change if isinstance(change, str) else json.dumps(change))
    with pytest.raises(ValueError, match=sentence) as refusal:
        read_shop(tmp_path)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("webshop: ")


def test_two_shops_are_open_side_by_side(tmp_path):
    worlds = []
    for size in 60, 90:
        folder = tmp_path / str(size)
        folder.mkdir()
        worlds.append(open_env("webshop", write_files(folder, *many_items(size))))
    one, two = worlds
    assert (one.TRAIN, one.TEST, one.family(0)) == (range(6, 60), range(6), "beauty")
    assert (two.TRAIN, two.TEST, one.PROMPT) == (range(9, 90), range(9), webshop.PROMPT)
    envs = [world.Env() for world in (one, webshop, two)]
    assert [env.last_task() for env in envs] == [59, 6909, 89]
    assert envs[0].reset(0) == webshop.Env(tmp_path / "60").reset(0) != envs[1].reset(0)


# ---- webshop_small ------------------------------------------------------------------------------

def test_small_shop_asks_for_no_wish_in_both_splits_and_only_for_what_titles_say():
    shop = webshop_small.small_shop()
    train, test = ({(goal.product.asin, frozenset(goal.attributes), *goal.options)
                    for goal in map(shop.goals.__getitem__, ids)}
                   for ids in (webshop_small.TRAIN, webshop_small.TEST))
    assert (len(shop.products), len(train), len(test), len(train & test)) == (29, 229, 46, 0)
    assert len({goal.instruction for goal in shop.goals}) == len(shop.goals) == 4300
    for goal in shop.goals:
        assert all(name in goal.product.title.lower() for name in goal.attributes)
        assert len(goal.options) == len(goal.product.options) == 1


def test_small_shop_finds_three_and_its_expert_buys_at_once():
    env = webshop_small.Env()
    games = [play(env, task, webshop_small.HORIZON) for task in webshop_small.TEST]
    for (_, results, *_), *_, (*_, info) in games:
        assert "(Total results: 3)" in results and "Next >" not in results and info["score"] == 1
    assert 4 <= sum(map(len, games)) / len(games) < 4.2 and max(map(len, games)) <= 6


@pytest.mark.parametrize("module, tasks, number", [
    (webshop, range(4, 5000, 5), 2),                        # groceries, as TINY asks for
    (webshop_small, [*range(500), *webshop_small.TEST], 1)], ids=["webshop", "webshop_small"])
def test_names_are_one_and_the_same_token_wherever_they_are_copied(module, tasks, number):
    """And a product's number is so many tokens, on the page and in click[...]."""
    env = module.Env()
    results = [play(env, task, 1)[0][1] for task in tasks[:500]]
    tokenizer = make_tokenizer(["search[]", "click[]", *results], 600, module.ONE_WORD)
    for task in tasks[-300:]:
        seen, goal = tokenizer.tokenize(env.reset(task)), env.goal
        names = [goal.product.query, *goal.attributes, *goal.options]
        tokens = [name.replace(" ", "Ġ") for name in names]
        assert {*tokens} <= {*seen} & {*tokenizer.tokenize(f"search[{' '.join(names)}]")}
        asin = goal.product.asin
        page, click = (tokenizer.tokenize(text) for text in (
            f"Page 1 (Total results: 50) [SEP] {asin} [SEP] ", f"click[{asin}]"))
        assert len(click) == number + 2 and page[-number - 1:-1] == click[1:-1]
