"""webshop: find a product, choose its options and buy it; after WebShop as AgentGym serves it.

    env:    WebShop [SEP] Instruction: [SEP] looking for sugar free, non gmo, high protein nut
            butters with size: 4 pack, and price lower than 50.00 dollars [SEP] Search
    agent:  search[nut butters sugar free non gmo high protein 4 pack]
    env:    Instruction: [SEP] looking for ... [SEP] Back to Search [SEP] Page 1 (Total
            results: 50) [SEP] Next > [SEP] B0SINOTABE [SEP] Non Gmo Nut Butters by Elder, High
            Protein [SEP] $21.95 [SEP] B0NALITALI [SEP] Elder Nut Butters - ...   (ten on a page)
    agent:  click[B0SINOTABE]
    env:    Instruction: ... [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] single [SEP] 4 pack
            [SEP] 8 pack [SEP] Non Gmo Nut Butters by Elder, High Protein [SEP] Price: $21.95 [SEP]
            Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now
    agent:  click[Features]         -> ... < Prev [SEP] Sugar free, tested by our own team [SEP] ...
    agent:  click[< Prev]           -> the product's page
    agent:  click[4 pack]           -> the same page: what is chosen is not shown
    agent:  click[Buy Now]          -> Thank you for shopping with us! [SEP] ...   (reward 1, done)

After WebShop (arXiv:2207.01206), its texts as in the trajectories of AgentGym. `search` works on
any page, also where no search bar is; `click` takes one of the page's clickables, in any case (GET
available_actions lists them). What cannot be clicked changes nothing: the same page again. So does
a text without an action, answered as AgentGym's client answers it: "Invalid Action.", then the
page. Of two actions in a text none is done. Reward at Buy Now, which ends the episode:

    (attributes met + options met + (price <= limit)) / (attributes + options + 1) * type factor

Its terms are in parts/shop_rules.py. Success is a reward of 1; RAGEN pays nothing else, in 9 turns.

The products are synthetic, so no score here can be compared with WebShop's: parts/products.py makes
1,000 of them and the goals, 6,410 for TRAIN and 500 for TEST. Search is BM25 (SQLite's FTS5) over
the texts that WebShop indexes, its best 50. Ratings and reviews are absent, as in the data that
AgentGym has. `--data FOLDER` of the scripts plays with WebShop's own files and with the task ids of
AgentGym: `shop_rules.read_shop`.

In 10 turns a random player solves 1.4% of TEST (mean reward 0.12). A player who searches for the
instruction and buys the first result as it is solves 10% (0.69). `expert` solves all, in 5.5 turns
on average, 7 at most: it knows the catalogue and opens only what fits. A process holds one
catalogue, 6 MB, made in 0.2 s when the first Env is.
"""
import functools
import itertools
import json
import os
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import envs
from envs.parts.agentgym import Manner, read_last
from envs.parts.products import CATEGORIES, GOODS, OPENINGS, make_shop, names_of
from envs.parts.shop_rules import alike, plain_color, read_shop, reward_of
from envs.parts.webshop_prompt import RULES
from envs.parts.wires import Wire

NAME, HORIZON, SUCCESS = "webshop", 10, 1.0
ENGINE = "SQLite, with FTS5"
FOLDER = ""     # of the files that Env() plays with: see `use`
TRAIN, TEST = range(500, 6910), range(500)
FAMILIES = CATEGORIES
PROMPT = """You are shopping on a web page. The instruction says what to buy: a kind of product, its
features and options, and a price that it must not exceed.
Actions, one per turn:
search[words] - look for products; the page lists ten results, Next > more
click[value] - click a button, a product's number or an option that is on the page
Open a product by its number, click every option that the instruction asks for, then Buy Now. What
its title does not say, Features and Description may. Buying ends the task, and you are paid for
each wish that the product and your options meet."""
EXAMPLE = "search[red shoes]"
TOOLS = {"search[{keywords}]": "Look for products with these words.",
         "click[{item}]": "Click a button, a product's number or an option on the page."}
# As AgentGym has it: its JSON, how its client talks to a model, its sets of trajectories.
WIRE = Wire(id_key="env_idx", create="env_idx", task_key="session_id", task_required=False,
            reset="[observation null]", step="{state reward done}",
            look={"available_actions": "available_actions", "instruction_text": "instruction_text",
                  "state": "{url html instruction_text}"})
AGENTGYM = Manner(RULES, read_last, agreed="Ok.")
SET_SIZES = dict(agenttraj=1000, agenttraj_l=3930)


def one_word(names, number):
    """ONE_WORD of a shop: the names of kinds, features and options, each the same token in the
    instruction, a query, an option and click[...], so that saying one is copying one; `number`, a
    product's, or its parts; runs of what every page says, with the space behind them, and then a
    link or an option is the same tokens as in click[...]; parts of prices."""
    names = "|".join(sorted(names, key=lambda name: (-len(name), name)))
    return (rf",?( and)? (?=({names})\b)|(?i: ?\b({names})\b)|"
            rf"({'|'.join(OPENINGS)})\b|{number}|(click|search)\[|"
            r"( ?(\[SEP\]|Instruction:|Back to Search|Page \d \(Total results: \d+\)|< Prev|"
            r"Next >|Price:|Rating: N\.A\.|Description|Features|Reviews|Buy Now))+ ?|"
            r", and price lower than|\$\d+|\.\d+( dollars)?")


ONE_WORD = one_word(names_of(sum((kinds for *_, kinds in GOODS.values()), [])),
                    "B0[A-Z]{4}|[A-Z]{4}")
TINY = dict(families="grocery", horizons=(8,), max_context=1024, steps=40, tasks_per_step=16,
            clone=dict(steps=1800, skill=0.9, lr=6e-3, heads=2))
SUB_PAGES = ("Description", "Features", "Reviews")
PAGE = 10               # results on a page
LONGEST_URL = 2000      # letters of a query in it


# ---- pages --------------------------------------------------------------------------------------

class Node(NamedTuple):
    """A piece of a page. Its kind: a button, a link, a radio button, the search bar, the wish (that
    is the instruction), or else the HTML element that holds the text."""
    kind: str
    text: str
    group: str = ""     # of a radio button


HTML = {"wish": '<div id="instruction-text"><h4>Instruction:<br>{text}</h4></div>',
        "bar": '<input id="search_input" type="text" name="search_query">',
        "button": '<button type="submit" class="btn">{text}</button>',
        "link": '<a class="product-link" href="#">{text}</a>',
        "radio": '<input type="radio" name="{group}" value="{text}"><label>{text}</label>'}
# The last page, with its spelling.
THANKS = """Thank you for shopping with us!|Your code:|None|(Paste it in your MTurk interface.)|\
Purchased|asin|{asin}|options|{options}|attrs|None|category|None|query|None|product category|None|\
Target|asin|options|attrs|price upper|instuction text|category|product category|query|Goal|None|\
Reward|Your score (min 0.0, max 1.0)|{reward}|Reward Details|None"""
BACK, PREV, NEXT = (Node("button", text) for text in ("Back to Search", "< Prev", "Next >"))


def results_page(wish, results, number):
    """The page of this number, from 1 on."""
    last = number * PAGE
    nodes = [wish, BACK, Node("p", f"Page {number} (Total results: {len(results)})")]
    nodes += [PREV] * (number > 1) + [NEXT] * (last < len(results))
    for product in results[last - PAGE:last]:
        nodes += [Node("link", product.asin), Node("h4", product.title), Node("h5", product.tag)]
    return nodes


def item_page(wish, product):
    """A product's page: its options, title, price, and the buttons."""
    nodes = [wish, BACK, PREV]
    for group, values in product.options.items():
        nodes += [Node("h4", group), *(Node("radio", value, group) for value in values)]
    nodes += [Node("h2", product.title), Node("h4", f"Price: {product.tag}")]
    return nodes + [Node("h4", "Rating: N.A."),
                    *(Node("button", name) for name in (*SUB_PAGES, "Buy Now"))]


def sub_page(wish, product, name):
    """One of SUB_PAGES of a product."""
    texts = {"Description": [product.description or "No Description"],
             "Features": product.bullets, "Reviews": ["No reviews found"]}[name]
    return [wish, BACK, PREV, *(Node("p", text) for text in texts)]


def text_of(nodes):
    """The page as an agent reads it."""
    texts = (["Instruction:", text] if kind == "wish" else [text] for kind, text, _ in nodes)
    return " [SEP] ".join(filter(None, map(str.strip, itertools.chain(*texts))))


def html_of(nodes):
    """The page as WebShop's browser has it; no text of a product becomes markup in it."""
    parts = [HTML.get(kind, f"<{kind}>{{text}}</{kind}>").format(
        text=escape(text), group=escape(group)) for kind, text, group in nodes]
    return f"<!DOCTYPE html><html><body>{''.join(parts)}</body></html>"


def clickables_of(nodes):
    """{what click[...] takes: its node}: buttons, then links, then options, as WebShop lists them.
    Of two options of one name the later counts."""
    found = {node.text.lower(): node for kind in ("button", "link") for node in nodes
             if node.kind == kind}
    return found | {node.text: node for node in nodes if node.kind == "radio"}


class Browser:
    """A shopper's way through the shop. nodes: the page; options: {group: value} chosen on it."""

    def __init__(self, shop, instruction):
        self.shop, self.wish = shop, Node("wish", instruction)
        self.to_search()

    def to_search(self):
        self.page, self.words, self.results, self.number = "search", "", [], 1
        self.product, self.options = None, {}
        self.nodes = [Node("h2", "WebShop"), self.wish, Node("bar", ""), Node("button", "Search")]

    def to_results(self, number):
        self.page, self.number, self.product, self.options = "results", number, None, {}
        self.nodes = results_page(self.wish, self.results, number)

    def to_item(self):
        self.page, self.nodes = "item", item_page(self.wish, self.product)

    def search(self, words):
        self.words, self.results = words, self.shop.search(words)
        self.to_results(1)

    def buy(self, reward):
        bought = dict(asin=self.product.asin, options=json.dumps(self.options), reward=reward)
        self.page = "done"
        self.nodes = [Node("p", text.format(**bought)) for text in THANKS.split("|")]

    def click(self, value):
        """Follow a link, press a button other than Buy Now, or choose an option."""
        node, sub_page_name = clickables_of(self.nodes)[value], value.capitalize()
        if node == BACK:
            self.to_search()
        elif node == NEXT:
            self.to_results(self.number + 1)
        elif node == PREV and self.page in SUB_PAGES:
            self.to_item()
        elif node == PREV:
            self.to_results(self.number - (self.page == "results"))
        elif sub_page_name in SUB_PAGES:
            self.page, self.nodes = sub_page_name, sub_page(self.wish, self.product, sub_page_name)
        elif node.kind == "link":
            self.product = next(p for p in self.results if p.asin == node.text)
            self.to_item()
        else:
            self.options[node.group] = value
            self.to_item()

    def url(self, session):
        """WebShop's address of this page."""
        words = quote(self.words[:LONGEST_URL].replace(" ", "+"), "+")
        options = quote(json.dumps(self.options))
        asin = quote(self.product.asin) if self.product else ""
        parts = {"search": [session], "results": ["search_results", session, words, self.number],
                 "item": ["item_page", session, asin, words, self.number, options],
                 "done": ["done", session, asin, options]}.get(self.page, [
                     "item_sub_page", session, asin, words, self.number, self.page, options])
        return "/".join(map(str, ["http://127.0.0.1:3000", *parts]))


# ---- the environment ----------------------------------------------------------------------------

@functools.cache
def shop_of(folder):
    """The Shop of a user's folder, or with "" our own, made once in a process."""
    return read_shop(Path(folder)) if folder else make_shop()


def use(folder):
    """What differs when it plays with the files in this folder: envs.with_data."""
    path = os.path.abspath(folder)
    shop = shop_of(path)
    return dict(FOLDER=path, TRAIN=shop.train, TEST=shop.test,
                family=functools.partial(family, folder=path))


def family(task_id, folder=""):
    return shop_of(folder).goals[task_id].product.category


def read_action(text):
    """ "click[Buy Now]" -> ("click", "buy now"); ("", "") if it is no action, or several."""
    verb, _, rest = text.strip().partition("\n")[0].partition("[")
    value, closed, _ = rest.rpartition("]")
    if verb not in ("search", "click") or not closed:
        return "", ""
    several = text.count("search[") + text.count("click[") > 1
    return ("", "") if several else (verb, value.strip().lower())


class Env(envs.Base):
    def __init__(self, data=None):          # data: a folder of WebShop's files
        self.shop = shop_of(self.module.FOLDER if data is None else os.path.abspath(data))

    def last_task(self):
        return len(self.shop.goals) - 1

    def start(self, task_id):
        self.task_id, self.goal = task_id, self.shop.goals[task_id]
        self.browser = Browser(self.shop, self.goal.instruction)
        self.looked, self.fitting = set(), {}       # for the expert: asins, and {asin: it fits}
        self.other = None           # of `other_goal`: a goal, and what fits it
        return text_of(self.browser.nodes)

    def act(self, action):
        browser, (verb, value), reward, done = self.browser, read_action(action), 0.0, False
        valid = bool(value) and (verb == "search" or value in clickables_of(browser.nodes)
                                 and value != "search")     # that button needs words
        if valid and verb == "search":
            browser.search(value)
        elif valid and value == "buy now":
            reward = reward_of(browser.product, browser.options.values(), self.goal)
            done = True
            browser.buy(reward)
        elif valid:
            browser.click(value)
            self.looked |= {browser.product.asin} if browser.page in SUB_PAGES else set()
        observation = "Invalid Action.\n\n" * (not verb) + text_of(browser.nodes)
        return observation, reward, done, {"success": reward == SUCCESS, "valid": valid,
                                           "score": reward}

    # What AgentGym's server tells beside: GET /available_actions, /state and /instruction_text

    def available_actions(self):
        nodes = self.browser.nodes
        return dict(has_search_bar=Node("bar", "") in nodes, clickables=[*clickables_of(nodes)])

    def html(self):
        return html_of(self.browser.nodes)

    def url(self):
        return self.browser.url(self.task_id)

    def instruction_text(self):
        return f"Instruction: {self.goal.instruction}"

    # Players

    def other_goal(self, rng):
        """Buys, as the expert does, what another task asks for."""
        mine = self.goal, self.fitting
        self.other = self.other or (self.shop.goals[rng.choice(self.module.TRAIN)], {})
        self.goal, self.fitting = self.other
        thought, action = self.expert()
        self.goal, self.fitting = mine
        return thought, action

    def choices(self, product):
        """For each option that the goal asks for one of the product's; None if it lacks one."""
        values = sum(product.options.values(), [])
        found = [next((value for value in sorted(values, key=lambda value: value != wish)
                       if alike(plain_color(value), plain_color(wish))), None)
                 for wish in self.goal.options]
        return None if None in found else found

    def fits(self, product):
        """Whether buying it with the right options earns 1."""
        if product.asin not in self.fitting:
            chosen = self.choices(product)
            self.fitting[product.asin] = \
                chosen is not None and reward_of(product, chosen, self.goal) == SUCCESS
        return self.fitting[product.asin]

    def expert(self):
        """Searches, opens the first result that fits, reads Features where the title does not say
        all, chooses the options and buys."""
        browser, product = self.browser, self.browser.product
        if browser.page == "search":
            return self.search_well()
        if browser.page == "results":
            return self.pick_result()
        if not self.fits(product):
            return f"{product.title} is not what I need. I look further.", "click[< Prev]"
        if browser.page in SUB_PAGES:
            return "It has all that I need. I go back to the product.", "click[< Prev]"
        unsaid = [wish for wish in self.goal.attributes if wish not in product.title.lower()]
        if unsaid and product.asin not in self.looked:
            return (f"The title does not say {' and '.join(unsaid)}. I look at the features.",
                    "click[Features]")
        for wish, value in zip(self.goal.options, self.choices(product)):
            if value not in browser.options.values():
                group = next(name for name, some in product.options.items() if value in some)
                return f"The {group} should be {wish}. I choose it.", f"click[{value}]"
        return f"It costs {product.tag} and has all that I need. I buy it.", "click[Buy Now]"

    def search_well(self):
        """The expert on the search page: the first of three queries that finds what fits."""
        what, wishes = self.goal.product.query, " ".join(self.goal.attributes)
        queries = (" ".join([what, wishes, *self.goal.options]), f"{what} {wishes}",
                   self.goal.product.title)
        query = next((q for q in queries if any(map(self.fits, self.shop.search(q)))), queries[-1])
        asked = ", ".join([*self.goal.attributes, *self.goal.options])
        return f"I need {what}: {asked}. I search for these words.", f"search[{query}]"

    def pick_result(self):
        """The expert among results: go to the page of the first that fits, and open that one."""
        results, number = self.browser.results, self.browser.number
        place = next((i for i, product in enumerate(results) if self.fits(product)), None)
        if place is None:
            return "Nothing here is what I need. I search anew.", "click[Back to Search]"
        if place // PAGE + 1 != number:
            button = "Next >" if place // PAGE + 1 > number else "< Prev"
            return f"Nothing on page {number} is what I need.", f"click[{button}]"
        title, tag, looks = results[place].title, results[place].tag, ("looks right", "comes first")
        return f"{title} {looks[not place]}, at {tag}. I open it.", f"click[{results[place].asin}]"

    def random_action(self, rng):
        if self.browser.page == "search":
            words = self.goal.instruction.split()
            return f"search[{' '.join(rng.sample(words, min(2, len(words))))}]"
        return f"click[{rng.choice([*clickables_of(self.browser.nodes).values()]).text}]"
