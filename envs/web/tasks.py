"""The tasks of envs/webarena.py: 48 templates over the five sites, each with what an answer or a
page must be in the end and with the expert's way. A template is a function of a Task; gold and way
come from the same rows of its database. Products, posts, places and the like are divided by a hash
of their names: what TEST asks about, TRAIN never does.
"""
import calendar
import itertools
import random
import zlib
from typing import NamedTuple
from urllib.parse import urlencode

from envs.web.maps import KINDS, MODES, clock, kilometres
from envs.web.pages import money
from envs.web.shop import CATEGORIES, SORTS, STATUSES
from envs.web.sites import Sites

HOSTS = {"shopping": "http://onestopmarket.com", "shopping_admin": "http://luma.com",
         "reddit": "http://reddit.com", "gitlab": "http://gitlab.com",
         "map": "http://openstreetmap.org"}
MONTHS = [f"{year}-{month:02}" for year in (2022, 2023) for month in range(1, 13)][:17]
ME = "nora_w"
SENTENCES = """I tried this twice and would do it again
Does anybody know a cheaper way
Thank you, this helped me a lot
I am not sure that this is right
Please keep us posted about it
My neighbor showed me how to do that
It took me a whole weekend
I will come back to this next month
The second part is the best one
Let us talk about it on Friday
That is what my aunt always says
I would start with something smaller""".split("\n")
GONE = ("Harbor Lantern", "Umbrella Stand", "Yoga Mat", "Fountain Pen", "Accordion", "Snow Globe",
        "Telescope Mount", "Picnic Blanket", "Chess Clock", "Camping Stove")      # nobody sells it
STRANGERS = ("Ottilie Brandt", "Casper Lindholm", "Mirela Dragan", "Tobias Finch", "Zelda Moreau",
             "Hugo Castellanos", "Ines Valverde", "Rufus Okafor", "Pia Sandoval", "Emil Tanaka")


class Dull(Exception):
    """These chances make no task: nothing to choose from, or an undecided question."""


class Step(NamedTuple):
    """A piece of the expert's way."""
    where: str          # path and query of the page that it is for; "": any page of the site
    do: str             # click, fill or read
    what: object        # (role, name); ({name of a field: value}, button); texts to be seen
    after: str = ""     # a text that stands before it on the page


def held_out(key):
    return zlib.crc32(f"webarena {key}".encode()) % 5 == 0


class Task:
    """One task. config: as the original's config files; answer: the expert's; steps: its way."""

    def __init__(self, task_id, number, site, test, db):
        self.rng, self.test, self.db = random.Random(f"webarena {task_id} {number}"), test, db
        self.host, self.steps, self.answer = HOSTS[site], [], "done"
        self.start = self.host + ("/admin" if site == "shopping_admin" else "/")
        self.eval = dict(eval_types=[], reference_answers=None, reference_url="", program_html=[])
        self.config = dict(sites=[site], task_id=task_id, start_url=self.start, require_login=True,
                           storage_state=None, geolocation=None, require_reset=False,
                           eval=self.eval)

    # What it is about

    def rows(self, sql, *values):
        return self.db.execute(sql, values).fetchall()

    def pick(self, options, key=None):
        """One of the options of this split; key: what decides on the split, the first column of a
        row. Dull: there is none."""
        own = [x for x in options if held_out(x[key or 0] if hasattr(x, "keys") else x)
               == self.test]
        if not own:
            raise Dull
        return self.rng.choice(own)

    def one(self, sql, *values, key=None):
        return self.pick(self.rows(sql, *values), key)

    def wants(self, template, **slots):
        intent = template
        for name, value in slots.items():
            intent = intent.replace("{{" + name + "}}", str(value))
        self.config |= dict(intent_template=template, instantiation_dict=slots, intent=intent)

    # How it is judged: what is said here together must all hold

    def judged(self, kind):
        if kind not in self.eval["eval_types"]:
            self.eval["eval_types"].append(kind)

    def says(self, *phrases):
        self.judged("string_match")
        self.eval["reference_answers"] = dict(must_include=[str(phrase) for phrase in phrases])
        self.answer = ", ".join(map(str, phrases))

    def cannot(self, reason):
        self.judged("string_match")
        self.eval |= dict(reference_answers=dict(fuzzy_match="N/A"), string_note=reason)
        self.answer = "N/A"

    def lands(self, address):
        self.judged("url_match")
        self.eval |= dict(reference_url=self.host + address, url_note="GOLD in PRED")

    def shows(self, address, *contents, css="main", what="outerText", exact=False, host=None):
        """address: a path, or "last", the page that the agent stopped on."""
        self.judged("program_html")
        url = address if address == "last" else (host or self.host) + address
        required = dict(exact_match=contents[0]) if exact else dict(must_include=list(contents))
        self.eval["program_html"].append(dict(
            url=url, locator=f"document.querySelector('{css}').{what}",
            required_contents=required))

    # The expert's way

    def click(self, where, name, role="link", after=""):
        self.steps.append(Step(where, "click", (role, name), after))

    def fill(self, where, fields, button, after=""):
        """button "": what is filled in is left there."""
        self.steps.append(Step(where, "fill", (fields, button), after))

    def read(self, where, *texts):
        self.steps.append(Step(where, "read", tuple(map(str, texts))))

    def found(self, words):
        """Search by the bar at the top -> the address of the results."""
        self.fill("", {"Search": words}, "Search")
        return "/search?" + urlencode(dict(q=words))

    def product(self):
        """A product of the shop, and the way to it."""
        p = self.one("SELECT * FROM shown WHERE stock > 0 ORDER BY id", key="name")
        self.click(self.found(p["name"]), p["name"])
        return p, f"/product/{p['id']}"

    def project(self):
        """A project of the code host, and the way to it."""
        p = self.one("SELECT name, owner, stars + starred AS stars, starred, id FROM project "
                     "ORDER BY id")
        self.click("", "Explore")
        self.click("/explore", f"{p['owner']} / {p['name']}")
        return p, f"/{p['owner']}/{p['name']}"

    def post(self):
        """A post of the forum, and the way to it."""
        p = self.one("SELECT title, listed.* FROM listed ORDER BY id")
        self.click(self.found(p["title"]), p["title"])
        return p, f"/f/{p['forum']}/{p['id']}"

    def sentence(self):
        return self.rng.choice(SENTENCES)

    def words(self, n=2):
        return " ".join(self.rng.sample("amber basil cedar delta ember fable ginger harbor indigo "
                                        "juniper kelp lemon maple nickel olive pepper".split(), n))


# ---- the shop -----------------------------------------------------------------------------------

def price(t):
    p, page = t.product()
    t.wants("What is the price of the {{product}}?", product=p["name"])
    t.says(money(p["price"])[1:])
    t.read(page, money(p["price"]))


def reviewers(t):
    p, page = t.product()
    topic, _ = t.pick([(x["topic"], p["name"]) for x in t.rows(
        "SELECT DISTINCT topic FROM review WHERE product_id = ? AND status = 'Approved' "
        "ORDER BY topic", p["id"])] or [("", "")])
    found = t.rows("SELECT nickname, day FROM review WHERE product_id = ? AND topic = ? AND "
                   "status = 'Approved' ORDER BY id", p["id"], topic)
    if not 0 < len(found) < 5:
        raise Dull
    t.wants("List the reviewers of the {{product}} who mention the {{topic}}.", topic=topic,
            product=p["name"])
    t.says(*dict.fromkeys(x["nickname"] for x in found))
    t.read(page, *[f"Review by {x['nickname']}, {x['day']}" for x in found])


def order_total(t):
    x = t.one("SELECT id, * FROM sale_total WHERE customer_id = 1 ORDER BY id")
    t.wants("What was the grand total of my order {{number}}?", number=x["id"])
    t.says(f"{x['total'] / 100:,.2f}")
    t.click("", "My Orders")
    t.read("/orders", f"{x['id']:09}", money(x["total"]))


def cheapest(t):
    category, most = t.pick([(c, most) for c in CATEGORIES for most in ("cheapest", "dearest")])
    found = t.rows("SELECT name, price FROM shown WHERE category = ? ORDER BY price", category)
    best, second = found[:2] if most == "cheapest" else found[:-3:-1]
    if best["price"] == second["price"]:
        raise Dull
    t.wants("What is the {{most}} product in the category {{category}}?", most=most,
            category=category)
    t.says(best["name"])
    sort = "price" if most == "cheapest" else "price_desc"
    t.click("/", category)
    t.fill(f"/category/{category}", {"Sort by": SORTS[sort][0]}, "Apply")
    t.read(f"/category/{category}?sort={sort}", best["name"])


def sorted_category(t):
    category, sort = t.pick([(c, s) for c in CATEGORIES for s in SORTS if s != "name"])
    t.wants("Show me the products of the category {{category}}, sorted by: {{order}}.",
            category=category, order=SORTS[sort][0])
    t.lands(f"/category/{category}?sort={sort}")
    t.click("/", category)
    t.fill(f"/category/{category}", {"Sort by": SORTS[sort][0]}, "Apply")


def add_to_cart(t):
    p, page = t.product()
    if not p["option_values"]:
        raise Dull
    option = t.rng.choice(p["option_values"].split(", "))
    t.wants("Put one {{product}} into my cart, {{name}}: {{option}}.", product=p["name"],
            name=p["option_name"], option=option)
    t.shows("/cart", p["name"], f" {option} ", css="table tbody")
    t.fill(page, {p["option_name"]: option}, "Add to Cart", after="In stock")


def review(t):
    p, page = t.product()
    stars, title, body = t.rng.randint(1, 4), t.words(), t.sentence()
    t.wants("Write a review of the {{product}} as {{nickname}}: {{stars}} of 5, summary "
            "\"{{title}}\", text \"{{body}}\".", product=p["name"], nickname="Nora W",
            stars=stars, title=title, body=body)
    t.shows(page, f"{title} Rating: {stars} of 5 {body} Review by Nora W")
    t.fill(page, {"Rating": f"{stars} of 5", "Nickname": "Nora W", "Summary": title,
                  "Review": body}, "Submit Review", after="Write a review")


def account(t):
    field, value = t.pick([("phone", f"555-{n}") for n in range(3100, 3140)]
                          + [("email", f"{name}@example.com") for name in
                             "nora nora.w whitlock nw noraw n.whitlock hello post mail".split()])
    t.wants("Change the {{field}} of my account to {{value}}.", field=field, value=value)
    t.shows("/account", value, css=f"[name={field}]", what="value", exact=True)
    t.click("", "My Account")
    t.fill("/account", {field.title(): value}, "Save")


def buy(t):
    p, page = t.product()
    options = dict([(p["option_name"], t.rng.choice(p["option_values"].split(", ")))]
                   if p["option_values"] else [])
    t.wants("Buy one {{product}}{{option}}, with express shipping.", product=p["name"],
            option="".join(f" ({x}: {y})" for x, y in options.items()))
    t.lands("/order/")
    t.shows("last", p["name"], "(Express)", "Pending", *[f" {x} " for x in options.values()])
    t.fill(page, options, "Add to Cart", after="In stock")
    t.click("/cart", "Proceed to Checkout")
    t.fill("/checkout", {"Shipping": "Express $15.00"}, "Place Order")


def cancel(t):
    x = t.one("SELECT id FROM sale WHERE customer_id = 1 AND status = 'Pending' ORDER BY id")
    t.wants("Cancel my order {{number}}.", number=x["id"])
    t.shows(f"/order/{x['id']}", "Canceled")
    t.click("", "My Orders")
    t.click("/orders", "View Order", after=f"{x['id']:09}")
    t.click(f"/order/{x['id']}", "Cancel Order", "button")


def draft(t):
    x = t.one("SELECT DISTINCT name FROM shown ORDER BY name")
    text = f"The {x['name']} arrived broken. {t.sentence()}"
    t.wants("Draft a message to the shop by its contact form, from Nora, nora@example.com: "
            "\"{{text}}\". Don't submit it yet, I will check it.", text=text)
    t.lands("/contact")
    for name, value in (("name", "Nora"), ("email", "nora@example.com"), ("message", text)):
        t.shows("last", value, css=f"[name={name}]", what="value", exact=True)
    t.click("", "Contact Us")
    t.fill("/contact", {"Name": "Nora", "Email": "nora@example.com",
                        "What's on your mind?": text}, "")


def not_sold(t):
    thing = t.pick(GONE)
    t.wants("How much does the {{product}} cost?", product=thing)
    t.cannot("The shop does not sell it.")
    t.read(t.found(thing), "0 found")


# ---- its administration -------------------------------------------------------------------------

def bestseller(t):
    since, until = t.pick([(a, b) for n, a in enumerate(MONTHS) for b in MONTHS[n:n + 3]])
    year, month = map(int, until.split("-"))
    since, until = f"{since}-01", f"{until}-{calendar.monthrange(year, month)[1]}"
    found = t.rows("SELECT name, sum(quantity) AS n FROM bestseller_line WHERE day BETWEEN ? AND ? "
                   "GROUP BY product_id ORDER BY n DESC LIMIT 2", since, until)
    if len(found) < 2 or found[0]["n"] == found[1]["n"]:
        raise Dull
    t.wants("Which product sold best from {{since}} to {{until}}?", since=since, until=until)
    t.says(found[0]["name"])
    t.click("", "Bestsellers")
    t.fill("/admin/reports/bestsellers", {"From": since, "To": until}, "Apply")
    t.read("/admin/reports/bestsellers?" + urlencode({"from": since, "to": until}),
           found[0]["name"])


def month_sales(t):
    month, what = t.pick([(m, w) for m in MONTHS for w in ("orders", "total")])
    x = t.rows("SELECT count(*) AS orders, sum(total) AS total FROM sale_total WHERE day LIKE ? "
               "AND status != 'Canceled'", f"{month}-%")[0]
    if not x["orders"]:
        raise Dull
    t.wants("By the sales report, what is the {{what}} of {{month}}?", month=month,
            what={"orders": "number of orders", "total": "sales total"}[what])
    t.says(x["orders"] if what == "orders" else f"{x['total'] / 100:,.2f}")
    t.click("", "Sales")
    t.read("/admin/reports/sales", month, money(x["total"]))


def order_count(t):
    status, customer = t.pick([(s, x["name"]) for s in STATUSES for x in t.rows(
        "SELECT DISTINCT name FROM sale ORDER BY name")])
    n = t.rows("SELECT count(*) FROM sale WHERE status = ? AND name = ?", status, customer)[0][0]
    if not n:
        raise Dull
    t.wants("How many orders of {{customer}} have the status {{status}}?", status=status,
            customer=customer)
    t.says(n)
    t.click("", "Orders")
    t.fill("/admin/orders", {"Status": status, "Customer": customer}, "Apply")
    t.read("/admin/orders?" + urlencode(dict(status=status, customer=customer)),
           f"{n} found")


def customer_detail(t):
    x = t.one("SELECT name, * FROM customer ORDER BY id")
    what = t.rng.choice(("email", "phone", "city"))
    t.wants("What is the {{what}} of the customer {{name}}?", what=what, name=x["name"])
    t.says(x[what])
    seek_customer(t, x["name"], x[what])


def seek_customer(t, words, text):
    t.click("", "Customers")
    t.fill("/admin/customers", {"Search by keyword": words}, "Apply")
    t.read("/admin/customers?" + urlencode(dict(q=words)), text)


def no_customer(t):
    name = t.pick(STRANGERS)
    t.wants("What is the email of the customer {{name}}?", name=name)
    t.cannot("There is no such customer.")
    seek_customer(t, name, "0 found")


def top_terms(t):
    n, asked = t.pick([(n, w) for n in range(1, 6) for w in ("searched for most", "used most")])
    found = t.rows("SELECT query, uses FROM search_term ORDER BY uses DESC LIMIT ?", n + 1)
    if found[-1]["uses"] == found[-2]["uses"]:
        raise Dull
    t.wants("What are the top {{n}} terms that customers {{asked}}?" if n > 1 else
            "Which term was {{asked}}?", n=n, asked=asked)
    t.says(*[x["query"] for x in found[:-1]])
    t.click("", "Search terms")
    t.read("/admin/reports/searches", found[-2]["query"])


def review_count(t):
    status, stars = t.pick([(s, n) for s in ("Approved", "Pending") for n in range(1, 6)])
    n = t.rows("SELECT count(*) FROM review WHERE status = ? AND rating = ?", status, stars)[0][0]
    t.wants("How many reviews with a rating of {{stars}} have the status {{status}}?",
            status=status, stars=stars)
    t.says(n)
    t.click("", "Reviews")
    t.fill("/admin/reviews", {"Status": status, "Rating": str(stars)}, "Apply")
    t.read(f"/admin/reviews?status={status}&rating={stars}", f"{n} found")


def admin_product(t):
    """A product, and the way to its form."""
    x = t.one("SELECT name, * FROM product ORDER BY id")
    t.click("", "Products")
    t.fill("/admin/products", {"Search by keyword": x["name"]}, "Apply")
    t.click("/admin/products?" + urlencode(dict(q=x["name"])), x["name"])
    return x, f"/admin/product/{x['id']}"


def set_price(t):
    x, page = admin_product(t)
    cents = t.rng.randint(500, 9999)
    t.wants("Set the price of the {{product}} to {{price}}.", product=x["name"],
            price=money(cents))
    t.shows(page, f"{cents / 100:.2f}", css="[name=price]", what="value", exact=True)
    t.fill(page, {"Price": f"{cents / 100:.2f}"}, "Save")


def disable(t):
    x, page = admin_product(t)
    t.wants("Disable the {{product}}, so that the shop no longer shows it.", product=x["name"])
    t.shows(f"/product/{x['id']}", "The page you requested was not found.",
            host=HOSTS["shopping"])
    t.fill(page, {"Enable Product": False}, "Save")


def moderate(t):
    x = t.one("SELECT review.id, title, nickname, name FROM review JOIN product ON product.id = "
              "product_id WHERE status = 'Pending' ORDER BY review.id")
    status = t.rng.choice(("Approved", "Not Approved"))
    t.wants("Give the pending review of {{nickname}} about the {{product}} the status {{status}}.",
            nickname=x["nickname"], product=x["name"], status=status)
    t.shows(f"/admin/review/{x['id']}", status, css="[name=status]", what="value", exact=True)
    words = f"{x['nickname']} {x['name']}"
    if len(t.rows("SELECT 1 FROM review JOIN product ON product.id = product_id WHERE name = ? "
                  "AND nickname = ?", x["name"], x["nickname"])) > 1:
        raise Dull
    t.click("", "Reviews")
    t.fill("/admin/reviews", {"Status": "Pending", "Search by keyword": words}, "Apply")
    t.click("/admin/reviews?" + urlencode(dict(status="Pending", q=words)), "Edit")
    t.fill(f"/admin/review/{x['id']}", {"Status": status}, "Save Review")


def admin_order(t):
    """The only order of a customer that day, and the way to it."""
    x = t.one("SELECT name, day, min(id) AS id, status FROM sale GROUP BY name, day HAVING "
              "count(*) = 1 AND name IN (SELECT name FROM sale GROUP BY name HAVING count(*) < 9) "
              "ORDER BY id")
    t.click("", "Orders")
    t.fill("/admin/orders", {"Customer": x["name"]}, "Apply")
    t.click("/admin/orders?" + urlencode(dict(customer=x["name"])), "View",
            after=f"{x['id']:09}")
    return x, f"/admin/order/{x['id']}"


def ship(t):
    x, page = admin_order(t)
    code = f"TRK{t.rng.randrange(10**6, 10**7)}"
    t.wants("The order of {{customer}} of {{day}} is on its way. Submit the shipment with the "
            "tracking number {{code}}.", customer=x["name"], day=x["day"], code=code)
    t.shows(page, f"Tracking number: {code}")
    t.fill(page, {"Tracking Number": code}, "Submit Shipment")


def orders_by_status(t):
    status, low = t.pick([(s, n) for s in STATUSES for n in range(50, 400, 25)])
    t.wants("Show me the orders with the status {{status}} and a total from {{low}} dollars on.",
            status=status, low=low)
    t.lands(f"/admin/orders?status={status}&low={low}")
    t.click("", "Orders")
    t.fill("/admin/orders", {"Status": status, "Total from": str(low)}, "Apply")


# ---- the forum ----------------------------------------------------------------------------------

def author(t):
    p, page = t.post()
    t.wants("Who wrote the post \"{{title}}\"?", title=p["title"])
    t.says(p["author"])
    t.read(page, p["author"])


def top_post(t):
    name, sort = t.pick([(x["name"], sort) for sort in ("top", "comments")
                         for x in t.rows("SELECT name FROM forum ORDER BY name")])
    column = {"top": "points", "comments": "comments"}[sort]
    best, second = t.rows(f"SELECT title, {column} FROM listed WHERE forum = ? "
                          f"ORDER BY {column} DESC LIMIT 2", name)
    if best[column] == second[column]:
        raise Dull
    t.wants("Which post of the forum {{forum}} has the most {{what}}?", forum=name, what=column)
    t.says(best["title"])
    t.click("", "Forums")
    t.click("/forums", name)
    t.fill(f"/f/{name}", {"Sort by": {"top": "Top", "comments": "Most commented"}[sort]}, "Apply")
    t.read(f"/f/{name}?sort={sort}", best["title"])


def comment(t):
    p, page = t.post()
    text = t.sentence()
    t.wants("Comment on the post \"{{title}}\": \"{{text}}\".", title=p["title"], text=text)
    t.shows(page, f"{ME} wrote on 2023-06-12", text)
    t.fill(page, {"Comment": text}, "Post")


def upvote(t):
    p, page = t.post()
    way = t.rng.choice(("upvote", "downvote"))
    t.wants("Give the post \"{{title}}\" {{way}}.", title=p["title"], way=f"an {way}"
            if way == "upvote" else f"a {way}")
    place = 1 if way == "upvote" else 2
    t.shows(page, f"Retract {way}", css=f"form[action=\"{page}/vote\"]:nth-of-type({place})",
            exact=True)
    t.click(page, way.title(), "button")


def submit(t):
    forum = t.one("SELECT name FROM forum ORDER BY name")["name"]
    title, body = f"{t.words().capitalize()}, is it worth it?", t.sentence()
    t.wants("Post in the forum {{forum}}, with the title \"{{title}}\" and the text \"{{body}}\".",
            forum=forum, title=title, body=body)
    t.lands(f"/f/{forum}/")
    t.shows("last", title, body, f"Submitted by {ME} in {forum}")
    t.click("", "Forums")
    t.click("/forums", forum)
    t.click(f"/f/{forum}", "Submit a post")
    t.fill(f"/submit/{forum}", {"Title": title, "Body": body}, "Create submission")


def biography(t):
    text = f"{t.sentence()}, says {t.words()}"
    if held_out(text) != t.test:
        raise Dull
    t.wants("Change my biography to \"{{text}}\".", text=text)
    t.shows("/edit_biography", text, css="[name=bio]", what="value", exact=True)
    t.click("", "Edit biography")
    t.fill("/edit_biography", {"Biography": text}, "Save")


def subscribe(t):
    x = t.one("SELECT name, subscribed FROM forum ORDER BY name")
    word, other = ("Subscribe", "Unsubscribe")[::-1 if x["subscribed"] else 1]
    t.wants("{{verb}} the forum {{forum}}.", forum=x["name"],
            verb="Unsubscribe from" if x["subscribed"] else "Subscribe to")
    t.shows(f"/f/{x['name']}", other, css=f"form[action=\"/f/{x['name']}/subscribe\"]", exact=True)
    t.click("", "Forums")
    t.click("/forums", x["name"])
    t.click(f"/f/{x['name']}", word, "button")


def no_forum(t):
    name = t.pick([x.lower().replace(" ", "_") for x in GONE])
    t.wants("How many posts are there in the forum {{forum}}?", forum=name)
    t.cannot("There is no such forum.")
    t.click("", "Forums")
    t.read("/forums", "space")


# ---- the code host ------------------------------------------------------------------------------

def commits(t):
    p, page = t.project()
    x = t.one("SELECT author, person.name, count(*) AS n FROM change JOIN person ON username = "
              "author WHERE project_id = ? GROUP BY author ORDER BY author", p["id"])
    t.wants("How many commits did {{author}} make to {{project}}?", author=x["name"],
            project=p["name"])
    t.says(x["n"])
    t.click(page, "Contributors", after="link 'Project'")
    t.read(f"{page}/contributors", x["name"])


def issue_count(t):
    p, page = t.project()
    label, state = t.rng.choice(("bug", "feature", "documentation")), t.rng.choice(
        ("open", "closed"))
    n = t.rows("SELECT count(*) FROM issue WHERE project_id = ? AND label = ? AND state = ?",
               p["id"], label, state)[0][0]
    t.wants("How many {{state}} issues with the label {{label}} does {{project}} have?",
            state=state, label=label, project=p["name"])
    t.says(n)
    t.click(page, "Issues", after="link 'Project'")
    t.fill(f"{page}/issues", {"State": state, "Label": label}, "Apply")
    t.read(f"{page}/issues?state={state}&label={label}", f"{n} found")


def stars(t):
    p, page = t.project()
    t.wants("How many stars does {{project}} have?", project=p["name"])
    t.says(p["stars"])
    t.read(page, f"{p['stars']} stars")


def star(t):
    p, page = t.project()
    word, other = ("Star", "Unstar")[::-1 if p["starred"] else 1]
    t.wants("{{word}} the project {{project}}.", word=word, project=p["name"])
    t.shows(page, other, css=f"form[action=\"{page}/star\"]", exact=True)
    t.click(page, word, "button")


def new_issue(t):
    p, page = t.project()
    title, label = f"{t.words().capitalize()} {t.rng.choice(('is slow', 'fails', 'is missing'))}", \
        t.rng.choice(("bug", "feature", "documentation"))
    t.wants("Create an issue in {{project}} with the title \"{{title}}\" and the label {{label}}.",
            project=p["name"], title=title, label=label)
    t.lands(f"{page}/issues/")
    t.shows("last", title, css="h1", exact=True)
    t.shows("last", label, css="select[name=label]", what="value", exact=True)
    t.click(page, "Issues", after="link 'Project'")
    t.click(f"{page}/issues", "New issue")
    t.fill(f"{page}/issues/new", {"Title": title, "Label": label}, "Create issue")


def close_issue(t):
    x = t.one("SELECT title, number, owner, name FROM issue JOIN project "
              "ON project.id = project_id WHERE state = 'open' GROUP BY title "
              "HAVING count(*) = 1 ORDER BY issue.id")
    page = f"/{x['owner']}/{x['name']}"
    t.wants("Close the issue \"{{title}}\" of {{project}}.", title=x["title"], project=x["name"])
    t.shows(f"{page}/issues/{x['number']}", "closed", css="main strong", exact=True)
    t.click("", "Explore")
    t.click("/explore", f"{x['owner']} / {x['name']}")
    t.click(page, "Issues", after="link 'Project'")
    t.click(f"{page}/issues", x["title"])
    t.click(f"{page}/issues/{x['number']}", "Close issue", "button")


def invite(t):
    p, page = t.project()
    x = t.one("SELECT username FROM person WHERE username NOT IN (SELECT username FROM member_of "
              "WHERE project_id = ?) ORDER BY username", p["id"])
    role = t.rng.choice(("Guest", "Developer", "Maintainer"))
    name = t.rows("SELECT name FROM person WHERE username = ?", x["username"])[0]["name"]
    t.wants("Invite {{user}} to {{project}} as {{role}}.", user=x["username"], project=p["name"],
            role=role)
    t.shows(f"{page}/members", f"{x['username']} {name} {role}", css="table")
    t.click(page, "Members", after="link 'Project'")
    t.fill(f"{page}/members", {"Username": x["username"], "Role": role}, "Invite")


def my_issues(t):
    label, state = t.pick([(x, y) for x in ("bug", "feature", "documentation", "help wanted")
                           for y in ("open", "closed")])
    t.wants("Show me the {{state}} issues assigned to me that have the label {{label}}.",
            state=state, label=label)
    t.lands("/dashboard/issues?" + urlencode(dict(state=state, label=label)))
    t.click("", "Issues")
    t.fill("/dashboard/issues", {"State": state, "Label": label}, "Apply")


def new_project(t):
    name = "-".join(t.words().split())
    if held_out(name) != t.test:
        raise Dull
    visibility = t.rng.choice(("Private", "Internal", "Public"))
    t.wants("Create a project named {{name}} with the visibility {{visibility}}.", name=name,
            visibility=visibility)
    t.shows(f"/nwhitlock/{name}", name, visibility)
    t.click("", "New project")
    t.fill("/projects/new", {"Project name": name, "Visibility": visibility}, "Create project")


# ---- the map ------------------------------------------------------------------------------------

def place(t):
    """A place, and the way to it."""
    x = t.one("SELECT name, * FROM spot ORDER BY id")
    t.click(t.found(x["name"]), x["name"])
    return x, f"/place/{x['id']}"


def address(t):
    x, page = place(t)
    t.wants("What is the address of {{place}}?", place=x["name"])
    t.says(x["street"], x["town"])
    t.read(page, x["street"])


def coordinates(t):
    x, page = place(t)
    t.wants("What are the coordinates of {{place}}, as latitude and longitude?", place=x["name"])
    t.says(f"{x['lat']:.5f}", f"{x['lon']:.5f}")
    t.read(page, f"{x['lat']:.5f}")


def way(t):
    """The way between two places -> its row, with their names; and the address of its page."""
    a = t.one("SELECT name, id FROM place ORDER BY id")
    b = t.rng.choice(t.rows("SELECT name, id FROM place WHERE id != ? ORDER BY id", a["id"]))
    mode = t.rng.choice(("car", "bike", "foot"))
    x = t.rows("SELECT * FROM way WHERE start = ? AND goal = ? AND mode = ?", a["id"], b["id"],
               mode)[0]
    t.click("", "Directions")
    t.fill("/directions", {"From": a["name"], "To": b["name"], "By": MODES[mode]}, "Go")
    return a["name"], b["name"], mode, x, "/directions?" + urlencode(
        {"from": a["name"], "to": b["name"], "mode": mode})


def distance(t):
    a, b, mode, x, page = way(t)
    t.wants("How long is the way from {{a}} to {{b}} by {{mode}}, in kilometers?", a=a, b=b,
            mode=MODES[mode].lower())
    if x["metres"] < 1000:
        raise Dull
    t.says(kilometres(x["metres"]).removesuffix("km"))
    t.read(page, kilometres(x["metres"]))


def duration(t):
    a, b, mode, x, page = way(t)
    t.wants("How much time does it take to get from {{a}} to {{b}} by {{mode}}? Answer as "
            "hours:minutes.", a=a, b=b, mode=MODES[mode].lower())
    t.says(clock(x["minutes"]))
    t.read(page, clock(x["minutes"]))


def directions(t):
    a, b, mode, x, page = way(t)
    t.wants("Show me the way from {{a}} to {{b}} by {{mode}}.", a=a, b=b,
            mode=MODES[mode].lower())
    t.lands(page)


def nearest(t):
    here = t.one("SELECT name, id FROM place ORDER BY id")
    kind = t.rng.choice(KINDS)
    found = t.rows("SELECT name, metres FROM place JOIN way ON goal = id WHERE start = ? AND "
                   "goal != start AND kind = ? AND mode = 'foot' ORDER BY metres LIMIT 2",
                   here["id"], kind)
    if found[0]["metres"] == found[1]["metres"]:
        raise Dull
    t.wants("What is the nearest place of the kind {{kind}} to {{place}}, on foot?", kind=kind,
            place=here["name"])
    t.says(found[0]["name"])
    t.click("", "Nearby")
    t.fill("/nearby", {"Find the nearest": kind, "to": here["name"]}, "Find")
    t.read("/nearby?" + urlencode(dict(kind=kind, of=here["name"])), found[0]["name"])


def no_place(t):
    thing = t.pick([f"{x} Museum" for x in GONE])
    t.wants("What are the opening hours of the {{place}}?", place=thing)
    t.cannot("The map does not have it.")
    t.read(t.found(thing), "No results found.")


TEMPLATES = [(site, function) for site, functions in {
    "shopping": (price, reviewers, order_total, cheapest, sorted_category, add_to_cart, review,
                 account, buy, cancel, draft, not_sold),
    "shopping_admin": (bestseller, month_sales, order_count, customer_detail, no_customer,
                       top_terms, review_count, set_price, disable, moderate, ship,
                       orders_by_status),
    "reddit": (author, top_post, comment, upvote, submit, biography, subscribe, no_forum),
    "gitlab": (commits, issue_count, stars, star, new_issue, close_issue, invite, my_issues,
               new_project),
    "map": (address, coordinates, distance, duration, directions, nearest, no_place),
}.items() for function in functions]


def task_of(task_id, number, test):
    """The task of a template -> (Sites, Task). Where the world of this id makes none, another."""
    site, function = TEMPLATES[number]
    for attempt in itertools.count():
        if attempt % 20 == 0:
            sites = Sites(task_id if attempt == 0 else f"{task_id} {attempt}")
        task = Task(task_id, attempt, site, test, sites.db)
        try:
            function(task)
        except Dull:
            continue
        return sites, task
