"""The goods of webshop.py and what its shoppers want. (A user's files instead: shop_rules.py.)

    shop = make_shop()                          1,000 products, 6,910 goals, always the same ones
    shop.goals[7].instruction                   "i am looking for polo shirts, button down ..."
    shop.search("low sodium oat crackers")      Products, best first, at most 50

25 kinds of goods, five in each of WebShop's categories. A product is one of its kind's three nouns,
has three of its seven attributes (two in the title, all in Features and Description), up to two
groups of options, and a price; a tenth have a range of prices. A goal asks for one to three of the
attributes, an option of each group, and sets a limit to the price. The goals' instructions are
6,910 different sentences; if nouns, attributes, options and prices are blanked, about 4,500 are
left. A tenth of the products are wanted in TEST only, all others in TRAIN only.
"""
import functools
import random
import re
import sqlite3
import string
import threading
from typing import NamedTuple

CATEGORIES = ("beauty", "electronics", "fashion", "garden", "grocery")      # WebShop's
MOST = 50               # results of a search
TERMS, LONGEST = 32, 40     # of a query: so many words count, each with so many letters
LIMITS = [10.0 * i for i in range(1, 100)]      # prices that a goal may set as its limit
STOP = set("""a an and are as at be by for from if in into is it no not of on or such that the their
    then there these they this to was will with""".split())     # Lucene's English stop words


class Product(NamedTuple):
    """Fields as WebShop names them in its files, but for title, bullets, tag and price."""
    asin: str               # ten letters and digits
    title: str
    category: str           # one of CATEGORIES
    query: str              # what it is, in a shopper's words
    product_category: str   # a path: "Food › Snacks › Oat Crackers"
    description: str
    bullets: list           # the Features
    tag: str                # the price shown: "$12.99", "$9.99 to $15.49"
    price: float            # the price paid
    attributes: list
    options: dict           # {group: values}


class Goal(NamedTuple):
    product: Product        # the one it was made for; others may do as well
    instruction: str
    attributes: list
    options: list           # values, of whatever groups
    limit: float            # the price must not be above it


class Shop:
    """Products, goals by task id, the ids of both splits, and the search engine, which gives
    `most` results."""

    def __init__(self, products, goals, train, test, most=MOST):
        self.products, self.goals, self.train, self.test = products, goals, train, test
        self.most = most
        self.lock = threading.Lock()        # one connection serves the threads of a server
        self.index = sqlite3.connect(":memory:", check_same_thread=False)
        self.index.execute(
            "CREATE VIRTUAL TABLE docs USING fts5(text, tokenize='porter unicode61')")
        self.index.executemany("INSERT INTO docs(rowid, text) VALUES (?, ?)", enumerate(
            " ".join([p.title, p.description, *p.bullets[:1], ", and ".join(
                f"{name}: {', '.join(values)}" for name, values in p.options.items())])
            .encode(errors="replace").decode() for p in products))      # half a character
        self.find = functools.lru_cache(4096)(self.find)

    def search(self, query):
        """The products that hold a word of the query, by BM25. Only its words count, and Lucene's
        stop words do not: no operator of FTS5 can be said."""
        words = re.findall(r"[^\W_]+", query.lower())
        terms = dict.fromkeys(word[:LONGEST] for word in words if word not in STOP)
        return self.find(" OR ".join(f'"{term}"' for term in [*terms][:TERMS])) if terms else []

    def find(self, expression):
        with self.lock:
            rows = self.index.execute(
                "SELECT rowid FROM docs WHERE docs MATCH ? ORDER BY bm25(docs), rowid LIMIT ?",
                (expression, self.most)).fetchall()
        return [self.products[row] for row, in rows]


# ---- our own catalogue --------------------------------------------------------------------------

VALUES = {      # a group of options: its name, its values; no two are alike to the reward
    "color": ("color", "black,white,navy,grey,red,olive,teal,beige,pink,purple,brown,coral"),
    "fit": ("size", "small,medium,large,petite,tall"), "shoe": ("size", "6,7,8,9,10,11"),
    "bed": ("size", "twin,full,queen,king"), "room": ("size", "2 x 3 feet,4 x 6 feet,5 x 8 feet"),
    "height": ("size", "short,medium,tall"), "bottle": ("size", "travel,regular,family"),
    "pack": ("size", "single,4 pack,8 pack,12 pack"),
    "flavor": ("flavor name", "vanilla,cinnamon,honey,maple,ginger,lemon,peach,mango,berry"),
    "scent": ("scent", "lavender,rose,citrus,vanilla,coconut,mint,cedar,jasmine"),
    "plug": ("style", "usb c,lightning,micro usb"), "set": ("style", "basic,deluxe,gift box")}
GOODS = {       # category: root of its paths, brands, (kind, nouns, prices, attributes, options)
    "beauty": ("Beauty", "Aurelle,Bellwood,Calista,Dewdrop,Everlea,Florin,Glowmere,Havena", [
        ("hair care", "hair shampoos,hair conditioners,hair masks", 8, 42, "sulfate free,tea tree,"
         "color safe,deep moisture,anti dandruff,argan oil,paraben free", "scent,bottle"),
        ("skin care", "face creams,body lotions,night serums", 9, 68, "fragrance free,"
         "fast absorbing,vitamin c,hyaluronic acid,non greasy,dermatologist tested,anti aging",
         "scent,bottle"),
        ("makeup", "lip glosses,eye liners,nail polishes", 6, 36, "long lasting,cruelty free,"
         "smudge proof,high shine,quick dry,lightly tinted,talc free", "color,set"),
        ("fragrance", "perfume oils,body mists,bath salts", 12, 74, "alcohol free,plant based,"
         "long lasting,skin safe,refillable glass,hand poured,cruelty free", "scent,bottle"),
        ("beauty tools", "makeup brushes,hair combs,facial rollers", 7, 48, "soft bristle,"
         "anti static,ergonomic handle,travel friendly,easy clean,wooden grip,heat resistant",
         "color,set")]),
    "electronics": ("Electronics", "Ampere,Bytewell,Coretek,Dynara,Electra,Fonix,Gridline,Hertzo", [
        ("headphones", "wireless earbuds,studio headphones,gaming headsets", 18, 180, "sweat proof,"
         "noise cancelling,fast charging,low latency,foldable design,deep bass,dual microphone",
         "color,set"),
        ("cases", "phone cases,tablet cases,laptop cases", 8, 46, "shock absorbing,slim profile,"
         "scratch resistant,kick stand,anti fingerprint,raised edges,vegan leather", "color"),
        ("chargers", "wall chargers,car chargers,charging cables", 7, 52, "high speed,"
         "nylon braided,overheat protection,travel friendly,led indicator,dual port,gold plated",
         "plug,color"),
        ("speakers", "bookshelf speakers,shower speakers,party speakers", 24, 220, "stereo sound,"
         "water proof,hands free,long range,heavy bass,dust proof,built in battery", "color,set"),
        ("cameras", "security cameras,action cameras,dash cameras", 29, 240, "night vision,"
         "motion detection,wide angle,easy install,image stabilizer,cloud storage,auto focus",
         "color,set")]),
    "fashion": ("Clothing", "Arden,Brightway,Corvane,Dunmore,Eastfold,Fairlane,Grovely,Hartwell", [
        ("shirts", "polo shirts,flannel shirts,dress shirts", 12, 58, "slim fit,machine washable,"
         "quick drying,moisture wicking,button down,wrinkle resistant,cotton blend", "color,fit"),
        ("dresses", "summer dresses,wrap dresses,evening dresses", 19, 96, "long sleeve,"
         "fully lined,v neck,knee length,side pockets,hand washable,lace trim", "color,fit"),
        ("shoes", "running shoes,hiking shoes,canvas shoes", 24, 130, "rubber sole,arch support,"
         "slip resistant,memory foam,wide toe,lace up,water repellent", "color,shoe"),
        ("pants", "jogger pants,cargo pants,yoga pants", 15, 72, "elastic waist,straight leg,"
         "tummy control,stretch fabric,deep pockets,ankle length,breathable mesh", "color,fit"),
        ("jackets", "rain jackets,fleece jackets,denim jackets", 28, 150, "wind proof,zip front,"
         "detachable hood,soft lining,water resistant,inner pocket,ribbed cuffs", "color,fit")]),
    "garden": ("Home", "Ashgrove,Birchly,Cotter,Daleside,Elmcroft,Fenwick,Hearthly,Inglen", [
        ("bedding", "throw blankets,bed sheets,pillow covers", 14, 88, "machine washable,"
         "super soft,fade resistant,double sided,hidden zipper,organic cotton,pet friendly",
         "color,bed"),
        ("seating", "bar stools,office chairs,dining chairs", 39, 290, "easy assemble,solid wood,"
         "lumbar support,swivel base,space saving,padded seat,anti scratch feet", "color,height"),
        ("lighting", "table lamps,floor lamps,string lights", 16, 140, "dimmable,energy efficient,"
         "remote control,frosted glass,battery powered,adjustable arm,warm light", "color,set"),
        ("floors", "area rugs,bath rugs,outdoor rugs", 17, 160, "non slip,stain resistant,low pile,"
         "hand woven,quick dry,easy clean,thick padding", "color,room"),
        ("storage", "storage baskets,wall shelves,plant stands", 11, 84, "rust proof,space saving,"
         "wall mounted,carbon steel,heavy duty,natural bamboo,no drilling", "color,set")]),
    "grocery": ("Food", "Ambery,Bramble,Cloverly,Dovetail,Elder,Foxglen,Goldfield,Hazel", [
        ("snacks", "oat crackers,granola bars,rice chips", 4, 38, "gluten free,low sodium,non gmo,"
         "high fiber,nut free,oven baked,low carb", "flavor,pack"),
        ("drinks", "black teas,fruit teas,herbal teas", 5, 44, "caffeine free,fair trade,non gmo,"
         "sugar free,usda organic,rich aroma,loose leaf", "flavor,pack"),
        ("sweets", "oat cookies,fruit candies,dark chocolates", 4, 36, "sugar free,dairy free,"
         "gluten free,natural ingredients,individually wrapped,keto friendly,fair trade",
         "flavor,pack"),
        ("pantry", "pasta sauces,soup mixes,salad dressings", 5, 34, "low sodium,fat free,"
         "dairy free,ready to eat,kosher certified,natural ingredients,no preservatives", "pack"),
        ("spreads", "nut butters,seed butters,sesame spreads", 6, 40, "non gmo,"
         "keto friendly,sugar free,usda organic,palm oil free,stone ground,high protein",
         "flavor,pack")])}
TITLES = ("{brand} {a} {noun}, {b}", "{brand} {noun} - {a}, {b}", "{a} {noun} by {brand}, {b}")
BULLETS = ("{A}, made for every day", "{A}, tested by our own team", "Our promise: {a}",
           "{A}, and easy to live with", "What buyers like most: {a}", "{A}, every time")
EXTRAS = ("A good gift.", "Made in small batches.", "Ships in plain packaging.", "Made with care.",
          "Loved by families.", "Free returns.")
OPENINGS = ("find me", "i need", "i am looking for", "i want", "show me", "get me", "please find",
            "i would like", "help me find", "looking for", "i want to buy", "can you find me")
WISHES = ("{commas} {noun}", "{noun}, {ands}", "{noun} listed as {ands}", "{noun} ({commas})",
          "{noun} with these features: {commas}")
PHRASES = {"color": ("in {}", "color {}", "in {} color"), "size": ("size {}", "in size {}"),
           "flavor name": ("{} flavor", "in {} flavor"), "scent": ("{} scent", "with {} scent"),
           "style": ("{} style", "in {} style")}
ASIN_PARTS = [a + b for a in "KO LU MI NA RE SI TA VO".split() for b in "BE DA LI NO".split()]


def names_of(kinds):
    """The nouns, attributes and values of options in these rows of GOODS: all that their goals may
    ask for by name."""
    texts = {text for _, nouns, *_, wishes, groups in kinds for text in (
        nouns, wishes, *(VALUES[group][1] for group in groups.split(",")))}
    return {name for text in texts for name in text.split(",")}


def make_product(rng, category, kind, asin):
    """One product of this kind, a row of GOODS."""
    root, brands, _ = GOODS[category]
    name, nouns, low, high, attributes, groups = kind
    noun, brand = rng.choice(nouns.split(",")), rng.choice(brands.split(","))
    own = rng.sample(attributes.split(","), 3)
    a, b = map(string.capwords, own[:2])
    options = {}
    for group, values in (VALUES[group] for group in groups.split(",") if rng.random() < 0.75):
        values = values.split(",")
        some = rng.sample(values, rng.randint(2, min(5, len(values))))
        options[group] = sorted(some, key=values.index)
    price = rng.randint(low, high - 1) + rng.choice((0.49, 0.95, 0.99))
    tag = f"${price}"
    if rng.random() < 0.1:
        top = round(price + rng.randint(2, 9), 2)
        tag, price = f"${price} to ${top}", round(rng.uniform(price, top), 2)
    bullets = [rng.choice(BULLETS).format(a=x, A=x.capitalize()) for x in rng.sample(own, 3)]
    title = rng.choice(TITLES).format(brand=brand, noun=string.capwords(noun), a=a, b=b)
    path = " › ".join([root, string.capwords(name), string.capwords(noun)])
    about = f"{brand} {noun}. What you get: {', '.join(own)}. {rng.choice(EXTRAS)}"
    return Product(asin, title, category, noun, path, about, bullets, tag, price, own, options)


def make_goal(rng, product):
    """A shopper's wish that this product fulfils, in one of the grammar's sentences."""
    attributes = rng.sample(product.attributes, rng.choice((1, 2, 2, 3)))
    options = {group: rng.choice(values) for group, values in product.options.items()}
    said = rng.choice(OPENINGS) + " " + rng.choice(WISHES).format(
        noun=product.query, commas=", ".join(attributes), ands=" and ".join(attributes))
    if options and rng.random() < 0.4:          # as WebShop's own generated goals say it
        said += " with " + ", and ".join(f"{name}: {value}" for name, value in options.items())
    elif options:
        phrases = [rng.choice(PHRASES[name]).format(value) for name, value in options.items()]
        rng.shuffle(phrases)
        joined = phrases[0].startswith(("in ", "with ")) and rng.random() < 0.5
        said += (" " if joined else ", ") + rng.choice((", ", " and ")).join(phrases)
    limit = price_limit(rng, product.price)         # over 10 dollars more: above any range
    return Goal(product, said + price_words(limit), attributes, [*options.values()], limit)


def price_limit(rng, price):
    """The larger of two of the next four round prices; a million where there are none."""
    above = [limit for limit in LIMITS if limit > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else 1e6


def price_words(limit):
    return f", and price lower than {limit:.2f} dollars" if limit < 1e6 else ""


@functools.cache
def make_shop(test=500, train=6410):
    """Our own catalogue with so many goals of either split. Task k asks for a product of the
    category CATEGORIES[k % 5], so that any stretch of ids is a fair sample."""
    rng, products, wanted = random.Random("webshop"), [], {}
    asins = [f"B0{a}{b}" for a in ASIN_PARTS for b in ASIN_PARTS]
    rng.shuffle(asins)
    for category, (_, _, kinds) in GOODS.items():
        made = [[make_product(rng, category, kind, asins.pop()) for _ in range(40)]
                for kind in kinds]
        products += sum(made, [])
        wanted[category, True] = [product for some in made for product in some[:4]]
        wanted[category, False] = [product for some in made for product in some[4:]]
        for some in (wanted[category, True], wanted[category, False]):
            rng.shuffle(some)
    rng.shuffle(products)
    goals, sentences = [], set()
    while len(goals) < test + train:
        some = wanted[CATEGORIES[len(goals) % 5], len(goals) < test]
        goal = make_goal(rng, some[len(goals) // 5 % len(some)])
        if goal.instruction not in sentences:
            sentences.add(goal.instruction)
            goals.append(goal)
    return Shop(products, goals, range(test, test + train), range(test))

