"""One Stop Market, http://onestopmarket.com: the shop, with Nora Whitlock (customer 1) logged in.

    GET  /                                      categories, bestsellers
    GET  /search?q=WORDS&sort=SORT&category=C   q: each word occurs in name, category or brand;
         &low=D&high=D&page=N                   sort: name, price, price_desc, rating, newest
    GET  /category/Kitchen?sort=&low=...        the same for one category
    GET  /product/3                             price, options, reviews; forms: add to cart, to the
                                                wish list, write a review (below)
    POST /cart/add      product, quantity, option
    GET  /cart
    POST /cart/update   line, quantity          0 removes it

Tables. Amounts are in cents, days are "2023-06-12".
    product(id, sku, name, brand, category, price, stock, description, option_name, option_values,
        enabled, added)                         option_values: "S, M, L", or ""
    review(id, product_id, nickname, day, rating, title, body, topic, status)
        topic: what the text speaks of; status: Approved (all that the shop shows), Pending, ...
    cart(id, product_id, option, quantity)
"""
from envs.web import words
from envs.web.pages import (TODAY, Problem, bullets, checkbox, field, form, hidden, html, link, money, paragraphs,
                            select, table, matching, url)

NAME, COLOUR = "One Stop Market", "#1f5f8b"
ABOUT = "an online shop"
SORTS = {"name": ("Name", "name"), "price": ("Price: low to high", "price"),
         "price_desc": ("Price: high to low", "price DESC"),
         "rating": ("Rating", "rating DESC"), "newest": ("Newest", "added DESC")}
CATEGORIES = ("Kitchen", "Electronics", "Clothing", "Garden", "Beauty", "Toys")
PER_PAGE = 12
SCHEMA = """
CREATE TABLE product(id INTEGER PRIMARY KEY, sku TEXT, name TEXT, brand TEXT, category TEXT,
    price INT, stock INT, description TEXT, option_name TEXT, option_values TEXT, enabled INT,
    added TEXT);
CREATE TABLE review(id INTEGER PRIMARY KEY, product_id INT, nickname TEXT, day TEXT, rating INT,
    title TEXT, body TEXT, topic TEXT, status TEXT);
CREATE INDEX review_of ON review(product_id);
CREATE TABLE cart(id INTEGER PRIMARY KEY, product_id INT, option TEXT, quantity INT);
CREATE VIEW shown AS SELECT product.*, (SELECT round(avg(rating), 1) FROM review
    WHERE product_id = product.id AND status = 'Approved') AS rating FROM product WHERE enabled;
"""
VARY = ["UPDATE product SET price = price * (85 + LUCK % 31) / 100", "UPDATE product SET stock = LUCK % 120",
        "DELETE FROM review WHERE LUCK % 4 = 0"]


def fill(db, rng):
    goods = [(kind, brand) for kind in words.lines_of(words.GOODS)
             for brand in rng.sample(words.BRANDS, 2)]
    rng.shuffle(goods)
    for number, ((category, kind, dollars, option, topics), brand) in enumerate(goods, 1):
        low, high = map(int, dollars.split())
        option, _, values = option.partition(": ")
        story, more = rng.choice(words.DESCRIPTIONS).split("|")
        about = rng.choice(topics.split(", "))
        db.execute("INSERT INTO product VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, 1, ?)", (
            number, f"{category[:2].upper()}-{1000 + 7 * number}", f"{brand} {kind}", brand,
            category, 100 * rng.randint(low, high) - rng.choice((1, 5, 50)),
            f"{story} Customers like the {about}. {more}", option, values, day(rng, 2021, 2022)))
        for _ in range(rng.randint(6, 12)):
            rating = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 5))
            title, body = rng.choice(words.BAD if rating < 3 else words.GOOD if rating > 3
                                     else words.MIXED).split("|")
            topic = rng.choice(topics.split(", "))
            db.execute("INSERT INTO review VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", (
                number, f"{rng.choice(words.FIRST)} {rng.choice(words.LAST)[0]}.",
                day(rng, 2022, 2023), rating, title, body.format(topic=topic), topic,
                rng.choice(("Approved",) * 7 + ("Pending",))))


def day(rng, first, last):
    """A day of these years; of 2023 only what is past."""
    year = rng.randint(first, last)
    return f"{year}-{rng.randint(1, 12 if year < 2023 else 5):02}-{rng.randint(1, 28):02}"


# ---- pages --------------------------------------------------------------------------------------

def bar(ask):
    count = ask.value("SELECT coalesce(sum(quantity), 0) FROM cart")
    return [form("/search", "Search", field("Search", "q", ask.query.get("q", "")), method="get",
                 kind="inline"), link("/cart", f"My Cart ({count})")]


def home(ask):
    best = ask.rows("SELECT * FROM shown ORDER BY rating DESC, id LIMIT 6")
    return "One Stop Market", [
        html("<h2>Categories</h2>"),
        bullets([link(f"/category/{name}", name) for name in CATEGORIES], "row"),
        html("<h2>Best rated</h2>"), cards(best)]


def cards(products):
    return bullets([html("{}<br>{}<br>{}", link(f"/product/{p['id']}", p["name"]),
                         money(p["price"]), stars(p["rating"])) for p in products], "cards")


def stars(rating):
    return html('<span class="small">{}</span>',
                f"Rating: {rating} of 5" if rating else "Not rated yet")


def search(ask, category=""):
    """The products that match the words, the category and the prices, a page of them."""
    words_, category = ask.query.get("q", ""), category or ask.query.get("category", "")
    sort = ask.query.get("sort", "name")
    order = SORTS.get(sort, SORTS["name"])[1]
    condition, values = matching(["name", "category", "brand"], words_)
    low, high = dollars(ask.query.get("low"), 0), dollars(ask.query.get("high"), 10**9)
    where = f"FROM shown WHERE {condition} AND ? IN ('', category) AND price BETWEEN ? AND ?"
    values = (*values, category, low, high)
    number, count = ask.page_number(), ask.value(f"SELECT count(*) {where}", *values)
    found = ask.rows(f"SELECT * {where} ORDER BY {order}, id LIMIT {PER_PAGE} OFFSET ?", *values,
                     PER_PAGE * (number - 1))
    refine = form(ask.path, "Apply", hidden("q", words_) if words_ else "",
                  select("Sort by", "sort", [(key, SORTS[key][0]) for key in SORTS], sort),
                  field("Price from", "low", ask.query.get("low", "")),
                  field("to", "high", ask.query.get("high", "")), method="get", kind="inline")
    title = f"Search results for: '{words_}'" if ask.path == "/search" else category
    return title, [html("<p>{} items</p>", count), refine,
                   cards(found) if found else html("<p>Your search returned no results.</p>"),
                   ask.page_links(number, count, PER_PAGE)]


def dollars(text, otherwise):
    """Cents of "12" or "12.50"; otherwise where the text is no such number."""
    try:
        return min(max(round(100 * float(text)), 0), 10**9)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def in_category(ask, name):
    if name not in CATEGORIES:
        raise Problem(404, "There is no such category.")
    return search(ask, name)


def product(ask, number):
    p = ask.row("SELECT * FROM shown WHERE id = ?", number)
    reviews = ask.rows("SELECT * FROM review WHERE product_id = ? AND status = 'Approved' "
                       "ORDER BY day DESC, id DESC LIMIT 30", number)
    return p["name"], [
        html("<p>{} · SKU {} · {}</p>", link(f"/category/{p['category']}", p["category"]),
             p["sku"], stars(p["rating"])),
        html("<p><strong>{}</strong> · {}</p>", money(p["price"]),
             "In stock" if p["stock"] else "Out of stock"),
        form("/cart/add", "Add to Cart", hidden("product", number), *chooser(p),
             field("Qty", "quantity", 1)),
        html("<h2>Details</h2>{}", paragraphs(p["description"])),
        html("<h2>Reviews ({})</h2>", len(reviews)),
        bullets(html('<strong>{title}</strong><br>Rating: {rating} of 5<br>{body}<br><span '
                     'class="small">Review by {nickname}, {day}</span>', **r) for r in reviews)]


def chooser(p):
    values = p["option_values"].split(", ") if p["option_values"] else []
    return [select(p["option_name"], "option", values)] if values else []


def add_to_cart(ask):
    number, quantity = ask.whole("product", 1, 10**6), ask.whole("quantity", 1, 100)
    p = ask.row("SELECT * FROM shown WHERE id = ?", number)
    option = ask.choice("option", p["option_values"].split(", ")) if p["option_values"] else ""
    if not p["stock"]:
        raise Problem(400, "This product is out of stock.")
    line = ask.rows("SELECT id FROM cart WHERE product_id = ? AND option = ?", number, option)
    if line:
        ask.run("UPDATE cart SET quantity = min(quantity + ?, 100) WHERE id = ?", quantity,
                line[0]["id"])
    else:
        ask.run("INSERT INTO cart VALUES (NULL, ?, ?, ?)", number, option, quantity)
    return "/cart"


def cart(ask):
    lines = ask.rows("SELECT cart.*, name, price, price * quantity AS amount FROM cart "
                     "JOIN product ON product.id = product_id ORDER BY cart.id")
    if not lines:
        return "Shopping Cart", html("<p>You have no items in your shopping cart.</p>")
    return "Shopping Cart", [
        table(["Item", "Option", "Price", "Qty", "Subtotal"], [
            [link(f"/product/{x['product_id']}", x["name"]), x["option"], money(x["price"]),
             form("/cart/update", "Update", hidden("line", x["id"]),
                  field("Qty", "quantity", x["quantity"])), money(x["amount"])] for x in lines]),
        html("<p>Order Total: <strong>{}</strong></p>", money(sum(x["amount"] for x in lines)))]


def update_cart(ask):
    line, quantity = ask.whole("line", 1, 10**6), ask.whole("quantity", 0, 100)
    ask.run("UPDATE cart SET quantity = ? WHERE id = ?", quantity, line)
    ask.run("DELETE FROM cart WHERE quantity = 0")
    return "/cart"


ROUTES = [
    ("GET", "/", home), ("GET", "/search", search), ("GET", "/category/(.+)", in_category),
    ("GET", "/product/([0-9]+)", product), ("POST", "/cart/add", add_to_cart),
    ("GET", "/cart", cart), ("POST", "/cart/update", update_cart),
]
