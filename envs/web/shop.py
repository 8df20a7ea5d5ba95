"""One Stop Market, http://onestopmarket.com: a shop where Nora Whitlock (customer 1) is logged in.

Pages, and what their forms send:
    GET  /                                  categories, best rated products
    GET  /search?q=&category=&sort=         each word of q is in the name, brand or category; sort:
             &low=&high=&page=              name, price, price_desc, rating, newest; dollars
    GET  /category/Kitchen                  the same for a category
    GET  /product/3                         price, stock, options, reviews, forms
    POST /cart/add         product, quantity, option
    GET  /cart                              POST /cart/update: line, quantity (0 removes it)
    POST /wishlist/add     product          GET /wishlist. POST /wishlist/remove: product
    POST /product/3/review rating, nickname, title, body
    GET  /checkout                          POST /checkout: name, street, city, zip, phone, shipping
                                            (Flat Rate, Express): an order; the cart is empty
    GET  /orders                            POST /order/5/cancel: while it is Pending
    GET  /order/5                           POST /order/5/reorder: its lines into the cart
    GET  /account                           POST /account: email, phone, street, city, zip,
                                            newsletter (1, or left out)
    GET  /contact                           POST /contact: name, email, message

Tables. Amounts are in cents, days are "2023-06-12". What is asked about: price, rating, reviewers
who speak of something, own orders and what was spent; what is done: every form above.
    product(id, sku, name, brand, category, price, stock, description, option_name, option_values,
        enabled, added)     option_values: "S, M, L" or "". View shown: the enabled, with `rating`
    review(id, product_id, nickname, day, rating, title, body, topic, status)
        topic: what the text speaks of ("handle"); status: Approved (the shop shows only these),
        Pending or Not Approved
    customer(id, name, email, phone, street, city, zip, since, newsletter)
    sale(id, customer_id, day, status, name, street, city, zip, phone, shipping, postage, tracking)
        an order. status: Pending, Processing, Complete or Canceled
    sale_line(id, sale_id, product_id, option, quantity, price)
    View sale_total(id, customer_id, customer, day, status, items, total)
    cart(id, product_id, option, quantity), wish(product_id), message(id, name, email, body)
"""
from envs.web import words
from envs.web.pages import (TODAY, Problem, area, bullets, checkbox, field, form, hidden, html,
                            link, money, paragraphs, select, table)

NAME, COLOUR, ABOUT = "One Stop Market", "#1f5f8b", "a shop"
CATEGORIES = ("Kitchen", "Electronics", "Clothing", "Garden", "Beauty", "Toys")
SORTS = {"name": ("Name", "name"), "price": ("Price: low to high", "price"),
         "price_desc": ("Price: high to low", "price DESC"), "rating": ("Rating", "rating DESC"),
         "newest": ("Newest", "added DESC")}
SHIPPING = {"Flat Rate": 500, "Express": 1500}      # cents
STATUSES = ("Pending", "Processing", "Complete", "Canceled")
SCHEMA = """
CREATE TABLE product(id INTEGER PRIMARY KEY, sku TEXT, name TEXT, brand TEXT, category TEXT,
    price INT, stock INT, description TEXT, option_name TEXT, option_values TEXT, enabled INT,
    added TEXT);
CREATE TABLE review(id INTEGER PRIMARY KEY, product_id INT, nickname TEXT, day TEXT, rating INT,
    title TEXT, body TEXT, topic TEXT, status TEXT);
CREATE INDEX review_product ON review(product_id, status, rating);
CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, email TEXT, phone TEXT, street TEXT,
    city TEXT, zip TEXT, since TEXT, newsletter INT);
CREATE TABLE sale(id INTEGER PRIMARY KEY, customer_id INT, day TEXT, status TEXT, name TEXT,
    street TEXT, city TEXT, zip TEXT, phone TEXT, shipping TEXT, postage INT, tracking TEXT);
CREATE TABLE sale_line(id INTEGER PRIMARY KEY, sale_id INT, product_id INT, option TEXT,
    quantity INT, price INT);
CREATE INDEX sale_line_sale ON sale_line(sale_id);
CREATE TABLE cart(id INTEGER PRIMARY KEY, product_id INT, option TEXT, quantity INT);
CREATE TABLE wish(product_id INTEGER PRIMARY KEY);
CREATE TABLE message(id INTEGER PRIMARY KEY, name TEXT, email TEXT, body TEXT);
CREATE VIEW shown AS SELECT product.*, (SELECT round(avg(rating), 1) FROM review
    WHERE product_id = product.id AND status = 'Approved') AS rating FROM product WHERE enabled;
CREATE VIEW sale_total AS SELECT sale.id, customer_id, sale.name AS customer, day, status,
    sum(quantity) AS items, sum(quantity * price) + postage AS total
    FROM sale JOIN sale_line ON sale_id = sale.id GROUP BY sale.id;
"""
VARY = ("UPDATE product SET price = price * (85 + LUCK % 31) / 100",
        "UPDATE product SET stock = max(LUCK % 130 - 10, 0)",
        "DELETE FROM review WHERE LUCK % 4 = 0",
        "DELETE FROM sale WHERE LUCK % 5 = 0",
        "DELETE FROM sale_line WHERE sale_id NOT IN (SELECT id FROM sale)",
        "UPDATE sale_line SET quantity = 1 + LUCK % 3",
        "UPDATE sale SET status = CASE WHEN LUCK % 6 = 0 THEN 'Canceled' WHEN day > '2023-04' THEN "
        "CASE LUCK % 2 WHEN 0 THEN 'Pending' ELSE 'Processing' END ELSE 'Complete' END")


# ---- the content --------------------------------------------------------------------------------

def fill(db, rng):
    def add(name, *row):
        db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)

    goods = [(kind, brand) for kind in words.lines_of(words.GOODS)
             for brand in rng.sample(words.BRANDS, 2)]
    rng.shuffle(goods)
    prices, options = {}, {}
    for number, ((category, kind, dollars, option, topics), brand) in enumerate(goods, 1):
        low, high = map(int, dollars.split())
        prices[number] = 100 * rng.randint(low, high) - rng.choice((1, 5, 50))
        option, _, options[number] = option.partition(": ")
        topics = topics.split(", ")
        story, more = rng.choice(words.DESCRIPTIONS)
        story = f"{story} Customers like the {rng.choice(topics)}. {more}"
        add("product", number, f"{category[:2].upper()}-{1000 + 7 * number}", f"{brand} {kind}",
            brand, category, prices[number], 0, story, option, options[number], 1,
            words.day(rng, 2020, 2021))
        for _ in range(rng.randint(6, 12)):
            rating, topic = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 5)), rng.choice(topics)
            title, body = rng.choice(words.REVIEWS[min(max(rating, 2), 4)])
            add("review", None, number, f"{rng.choice(words.FIRST)} {rng.choice(words.LAST)[0]}.",
                words.day(rng, 2022, 2023), rating, title, body.format(topic=topic), topic,
                rng.choice(("Approved",) * 7 + ("Pending",)))
    people = ["Nora Whitlock", *words.people(rng, 39)]
    for number, name in enumerate(people, 1):
        town, _, code, *_ = rng.choice(words.TOWNS)
        add("customer", number, name, name.lower().replace(" ", ".") + "@example.com",
            f"555-01{number + 20}", words.address(rng), town, code, words.day(rng, 2019, 2021),
            rng.randint(0, 1))
    days = sorted(words.day(rng, 2022, 2023) for _ in range(240))
    for number, day in enumerate(days, 1):
        buyer = 1 if number % 16 == 0 else rng.randint(2, 40)
        shipping = rng.choice(sorted(SHIPPING))
        add("sale", number, buyer, day, "", *db.execute(
            "SELECT name, street, city, zip, phone FROM customer WHERE id = ?", (buyer,)
            ).fetchone(), shipping, SHIPPING[shipping], "")
        for thing in rng.sample(sorted(prices), rng.choice((1, 1, 2, 3))):
            add("sale_line", None, number, thing, rng.choice(options[thing].split(", ")), 1,
                prices[thing])


# ---- looking ------------------------------------------------------------------------------------

def bar(ask):
    count = ask.value("SELECT coalesce(sum(quantity), 0) FROM cart")
    return [form("/search", "Search", field("Search", "q", ask.query.get("q", "")), method="get",
                 kind="inline"), link("/cart", f"My Cart ({count})"),
            link("/wishlist", "My Wish List"), link("/orders", "My Orders"),
            link("/account", "My Account"), link("/contact", "Contact Us")]


def home(ask):
    best = ask.rows("SELECT * FROM shown ORDER BY rating DESC, id LIMIT 6")
    return NAME, [
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
    if category and category not in CATEGORIES:
        raise Problem(404, "There is no such category.")
    asked, sort = ask.query.get("q", ""), ask.query.get("sort", "name")
    condition, values = ask.where(
        q="name || ' ' || category", category="category = ?",
        low="price >= 100 * CAST(? AS REAL)", high="price <= 100 * CAST(? AS REAL)")
    order = SORTS.get(sort, SORTS["name"])[1]
    found, count, links = ask.paged(
        f"SELECT * FROM shown WHERE {condition} AND ? IN ('', category) ORDER BY {order}, id",
        *values, category, per_page=12)
    return category or f"Search results for: '{asked}'", [
        form(ask.path, "Apply", *([] if category else [
            hidden("q", asked), select("Category", "category", [("", "All"), *CATEGORIES],
                                       ask.query.get("category", ""))]),
             select("Sort by", "sort", [(key, SORTS[key][0]) for key in SORTS], sort),
             field("Price from", "low", ask.query.get("low", "")),
             field("to", "high", ask.query.get("high", "")), method="get", kind="inline"),
        html("<p>{} items</p>", count), cards(found) if found else
        html("<p>Your search returned no results.</p>"), links]


def product(ask, number):
    p = ask.row("SELECT * FROM shown WHERE id = ?", number)
    reviews, count, links = ask.paged(
        "SELECT * FROM review WHERE product_id = ? AND status = 'Approved' ORDER BY day DESC, "
        "id DESC", number, per_page=15)
    options = [select(p["option_name"], "option", p["option_values"].split(", "))
               ] if p["option_values"] else []
    return p["name"], [
        html("<p>{} · SKU {} · {}</p>", link(f"/category/{p['category']}", p["category"]),
             p["sku"], stars(p["rating"])),
        html("<p><strong>{}</strong> · {}</p>", money(p["price"]),
             "In stock" if p["stock"] else "Out of stock"),
        form("/cart/add", "Add to Cart", hidden("product", p["id"]), options,
             field("Qty", "quantity", 1)),
        form("/wishlist/add", "Add to Wish List", hidden("product", p["id"])),
        html("<h2>Details</h2>{}<h2>Reviews ({})</h2>", paragraphs(p["description"]), count),
        bullets(html('<strong>{title}</strong><br>Rating: {rating} of 5<br>{body}<br><span '
                     'class="small">Review by {nickname}, {day}</span>', **r) for r in reviews),
        links, html("<h2>Write a review</h2>"),
        form(f"/product/{p['id']}/review", "Submit Review",
             select("Rating", "rating", [(n, f"{n} of 5") for n in range(1, 6)], 5),
             field("Nickname", "nickname"), field("Summary", "title"), area("Review", "body"))]


def cart(ask):
    lines = cart_lines(ask)
    if not lines:
        return "Shopping Cart", html("<p>You have no items in your shopping cart.</p>")
    return "Shopping Cart", [
        table(["Item", "Option", "Price", "Qty", "Subtotal"], [
            [link(f"/product/{x['product_id']}", x["name"]), x["option"], money(x["price"]),
             form("/cart/update", "Update", hidden("line", x["id"]),
                  field("Qty", "quantity", x["quantity"])), money(x["amount"])] for x in lines]),
        html("<p>Subtotal: <strong>{}</strong></p><p>{}</p>",
             money(sum(x["amount"] for x in lines)), link("/checkout", "Proceed to Checkout"))]


def cart_lines(ask):
    return ask.rows("SELECT cart.*, name, price, price * quantity AS amount FROM cart "
                    "JOIN product ON product.id = product_id ORDER BY cart.id")


def wish_list(ask):
    found = ask.rows("SELECT shown.* FROM wish JOIN shown ON id = product_id ORDER BY id")
    return "My Wish List", table(["Product", "Price", "", ""], [
        [link(f"/product/{p['id']}", p["name"]), money(p["price"]), stars(p["rating"]),
         form("/wishlist/remove", "Remove", hidden("product", p["id"]))] for p in found],
        "You have no items in your wish list.")


def orders(ask):
    found, count, links = ask.paged("SELECT * FROM sale_total WHERE customer_id = 1 "
                                    "ORDER BY day DESC, id DESC")
    return "My Orders", [html("<p>{} orders</p>", count), table(
        ["Order #", "Date", "Ship To", "Order Total", "Status", ""],
        [[f"{x['id']:09}", x["day"], x["customer"], money(x["total"]), x["status"],
          link(f"/order/{x['id']}", "View Order")] for x in found]), links]


def order(ask, number):
    x = ask.row("SELECT sale.*, total FROM sale JOIN sale_total USING (id) "
                "WHERE id = ? AND sale.customer_id = 1", number)
    return f"Order # {x['id']:09}", [
        html("<p>{status} · {day}</p>", **x), order_lines(ask, x),
        form(f"/order/{x['id']}/reorder", "Reorder"),
        form(f"/order/{x['id']}/cancel", "Cancel Order") if x["status"] == "Pending" else None]


def order_lines(ask, x):
    """What a customer and the shop's administration both see of an order."""
    lines = ask.rows("SELECT sale_line.*, name, sku FROM sale_line JOIN product "
                     "ON product.id = product_id WHERE sale_id = ? ORDER BY sale_line.id", x["id"])
    return [table(["Product", "SKU", "Option", "Price", "Qty", "Subtotal"],
                  [[y["name"], y["sku"], y["option"], money(y["price"]), y["quantity"],
                    money(y["price"] * y["quantity"])] for y in lines]),
            html("<p>Shipping &amp; Handling ({}): {}</p><p>Grand Total: <strong>{}</strong></p>"
                 "<h2>Shipping Address</h2><p>{name}<br>{street}<br>{city}, {zip}<br>{phone}</p>",
                 x["shipping"], money(x["postage"]), money(x["total"]), **x),
            html("<p>Tracking number: {}</p>", x["tracking"]) if x["tracking"] else None]


# ---- doing --------------------------------------------------------------------------------------

def add_to_cart(ask):
    p = ask.row("SELECT * FROM shown WHERE id = ?", ask.whole("product", 1, 10**6))
    option = ask.choice("option", p["option_values"].split(", "))
    put_in_cart(ask, p["id"], option, ask.whole("quantity", 1, 100))
    return "/cart"


def put_in_cart(ask, number, option, quantity):
    if not ask.value("SELECT stock FROM product WHERE id = ?", number):
        raise Problem(400, "This product is out of stock.")
    if not ask.run("UPDATE cart SET quantity = min(quantity + ?, 100) WHERE product_id = ? "
                   "AND option = ?", quantity, number, option):
        ask.run("INSERT INTO cart VALUES (NULL, ?, ?, ?)", number, option, quantity)


def update_cart(ask):
    ask.run("UPDATE cart SET quantity = ? WHERE id = ?", ask.whole("quantity", 0, 100),
            ask.whole("line", 1, 10**6))
    ask.run("DELETE FROM cart WHERE quantity = 0")
    return "/cart"


def add_wish(ask):
    ask.run("INSERT OR IGNORE INTO wish SELECT id FROM shown WHERE id = ?",
            ask.whole("product", 1, 10**6))
    return "/wishlist"


def remove_wish(ask):
    ask.run("DELETE FROM wish WHERE product_id = ?", ask.whole("product", 1, 10**6))
    return "/wishlist"


def write_review(ask, number):
    number = ask.value("SELECT id FROM shown WHERE id = ?", number)
    ask.run("INSERT INTO review VALUES (NULL, ?, ?, ?, ?, ?, ?, '', 'Approved')", number,
            ask.text("nickname", 40), TODAY, ask.whole("rating", 1, 5), ask.text("title", 100),
            ask.text("body", 2000))
    return f"/product/{number}"


def checkout(ask):
    lines = cart_lines(ask)
    if not lines:
        return "/cart"
    me = ask.row("SELECT * FROM customer WHERE id = 1")
    return "Checkout", [
        table(["Item", "Option", "Qty", "Subtotal"],
              [[x["name"], x["option"], x["quantity"], money(x["amount"])] for x in lines]),
        form("/checkout", "Place Order", html("<h2>Shipping Address</h2>"),
             [field(name.title(), name, me[name])
              for name in ("name", "street", "city", "zip", "phone")],
             select("Shipping", "shipping", [(key, f"{key} {money(SHIPPING[key])}")
                                             for key in SHIPPING]))]


def place_order(ask):
    """The cart becomes an order of today, paid at today's prices."""
    if not cart_lines(ask):
        raise Problem(400, "You have no items in your shopping cart.")
    shipping = ask.choice("shipping", SHIPPING)
    ask.run("INSERT INTO sale VALUES (NULL, 1, ?, 'Pending', ?, ?, ?, ?, ?, ?, ?, '')", TODAY,
            *[ask.text(name, 100) for name in ("name", "street", "city", "zip", "phone")],
            shipping, SHIPPING[shipping])
    number = ask.value("SELECT last_insert_rowid()")
    ask.run("INSERT INTO sale_line SELECT NULL, ?, product_id, option, quantity, price FROM cart "
            "JOIN product ON product.id = product_id ORDER BY cart.id", number)
    ask.run("UPDATE product SET stock = max(stock - (SELECT sum(quantity) FROM cart WHERE "
            "product_id = product.id), 0) WHERE id IN (SELECT product_id FROM cart)")
    ask.run("DELETE FROM cart")
    return f"/order/{number}"


def cancel_order(ask, number):
    ask.run("UPDATE sale SET status = 'Canceled' WHERE id = ? AND customer_id = 1 "
            "AND status = 'Pending'", number)
    return f"/order/{number}"


def reorder(ask, number):
    for line in ask.rows("SELECT sale_line.* FROM sale_line JOIN sale ON sale.id = sale_id "
                         "WHERE sale_id = ? AND customer_id = 1", number):
        put_in_cart(ask, line["product_id"], line["option"], line["quantity"])
    return "/cart"


def account(ask):
    me = ask.row("SELECT * FROM customer WHERE id = 1")
    return "My Account", [
        html("<p>{name}, a customer since {since}</p>", **me),
        form("/account", "Save", [field(name.title(), name, me[name])
                                  for name in ("email", "phone", "street", "city", "zip")],
             checkbox("Subscribed to the newsletter", "newsletter", me["newsletter"]))]


def save_account(ask):
    ask.run("UPDATE customer SET email = ?, phone = ?, street = ?, city = ?, zip = ?, "
            "newsletter = ? WHERE id = 1",
            *[ask.text(name, 100) for name in ("email", "phone", "street", "city", "zip")],
            "newsletter" in ask.form)
    return "/account"


def contact(ask):
    return "Contact Us", form("/contact", "Submit", field("Name", "name"), field("Email", "email"),
                              area("What's on your mind?", "message"))


def send_message(ask):
    ask.run("INSERT INTO message VALUES (NULL, ?, ?, ?)", ask.text("name", 100),
            ask.text("email", 100), ask.text("message", 2000))
    return "Contact Us", html("<p>Thanks for contacting us. We'll answer very soon.</p>")


ROUTES = [
    ("GET", "/", home), ("GET", "/search", search), ("GET", "/category/(.+)", search),
    ("GET", "/product/(\\d+)", product), ("POST", "/product/(\\d+)/review", write_review),
    ("GET", "/cart", cart), ("POST", "/cart/add", add_to_cart),
    ("POST", "/cart/update", update_cart),
    ("GET", "/wishlist", wish_list), ("POST", "/wishlist/add", add_wish),
    ("POST", "/wishlist/remove", remove_wish), ("GET", "/checkout", checkout),
    ("POST", "/checkout", place_order), ("GET", "/orders", orders), ("GET", "/order/(\\d+)", order),
    ("POST", "/order/(\\d+)/cancel", cancel_order), ("POST", "/order/(\\d+)/reorder", reorder),
    ("GET", "/account", account), ("POST", "/account", save_account),
    ("GET", "/contact", contact), ("POST", "/contact", send_message),
]
