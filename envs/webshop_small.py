"""webshop_small: the shop of webshop.py, so small that a tiny model learns to buy in it.

    env:    WebShop [SEP] Instruction: [SEP] help me find rice chips (low sodium) with size: 12
            pack, and price lower than 60.00 dollars [SEP] Search                   (task 4068)
    agent:  search[rice chips low sodium 12 pack]
    env:    Instruction: [SEP] ... [SEP] Back to Search [SEP] Page 1 (Total results: 3) [SEP]
            B0REDAVOBE [SEP] Elder Rice Chips - Non Gmo, Low Sodium [SEP] $22.99 [SEP]
            B0TANOLUDA [SEP] Bramble Non Gmo Rice Chips, Low Sodium ...     (three in all)
    agent:  click[B0REDAVOBE]
    agent:  click[12 pack]
    agent:  click[Buy Now]          -> Thank you for shopping with us! ...      (reward 1, done)

Pages, reward and expert are webshop.py's. The 29 products are those of its snacks and drinks that
have one group of options; a search finds three. A goal asks for one or two features, which stand in
the title, and an option. TRAIN and TEST want the same products: of 275 wishes (a product, features
of it and an option) TEST asks for 46, in 300 sentences, and TRAIN for the other 229.

In 8 turns a random player solves 1% of TEST (mean reward 0.16), `expert` all (4.0 turns on average,
6 at most).
"""
import functools
import random

from envs import webshop
from envs.parts.products import GOODS, Shop, make_goal, make_shop, names_of

NAME, HORIZON, SUCCESS = "webshop_small", 8, 1.0
TRAIN, TEST = range(0, 4000), range(4000, 4300)
FAMILIES = ("one feature", "two features")
PROMPT = webshop.PROMPT.replace("ten results, Next > more", "three results")
EXAMPLE = "search[red shoes]"
TOOLS = webshop.TOOLS
MOST = 3                            # results of a search
KINDS = GOODS["grocery"][2][:2]     # snacks and drinks
NOUNS = {noun for _, nouns, *_ in KINDS for noun in nouns.split(",")}
ONE_WORD = webshop.one_word(names_of(KINDS), "B0[A-Z]{8}")
TINY = dict(horizons=(6,), max_context=640, steps=40, kl_coef=0.01,
            clone=dict(goal="other", skill=0.9, steps=900, lr=6e-3, heads=2))


@functools.cache
def small_shop():
    """The products and their goals, of which make_goal's are kept that fit."""
    rng, goals, sentences, held_out = random.Random("webshop_small"), [], set(), {}
    products = [p for p in make_shop().products if p.query in NOUNS and len(p.options) == 1]
    while len(goals) <= TEST[-1]:
        goal = make_goal(rng, rng.choice(products))
        wish = goal.product.asin, frozenset(goal.attributes), *goal.options
        said = all(name in goal.product.title.lower() for name in goal.attributes)
        if said and goal.instruction not in sentences and \
                held_out.setdefault(wish, rng.random() < 0.2) == (len(goals) in TEST):
            sentences.add(goal.instruction)
            goals.append(goal)
    return Shop(products, goals, TRAIN, TEST, MOST)


def family(task_id):
    """How many features the goal asks for."""
    return FAMILIES[len(small_shop().goals[task_id].attributes) - 1]


class Env(webshop.Env):
    def __init__(self):
        self.shop = small_shop()

    def other_goal(self, rng):
        """Wants the product at once, mostly in whatever size or flavour it comes."""
        if self.other is None:
            self.other = rng.random() < 2 / 3       # whether it is in a hurry
        thought, action = self.expert()
        if self.other and action in [f"click[{wish}]" for wish in self.goal.options]:
            return "Any of them will do.", "click[Buy Now]"
        return thought, action

    def random_action(self, rng):
        """On the search page it searches for two of the goal's names."""
        if self.browser.page != "search":
            return super().random_action(rng)
        names = [self.goal.product.query, *self.goal.attributes, *self.goal.options]
        return f"search[{' '.join(rng.sample(names, 2))}]"
