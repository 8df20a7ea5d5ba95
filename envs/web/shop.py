"""One Stop Market, http://onestopmarket.com: a shop where Nora Whitlock (customer 1) is logged in.

Pages, and what their forms send:
    GET  /                                  categories, best rated products
    GET  /search?q=&category=&sort=         each word of q is in the name, brand or category; sort:
             &low=&high=&page=              name, price, price_desc, rating, newest; dollars
    GET  /category/Kitchen                  the same for a category
    GET  /product/3                         price, stock, options, reviews, forms
    POST /cart/add         product, quantity, option
    GET  /cart                              POST /cart/update: line, quantity (0 removes it)
    GET  /wishlist                          POST /wishlist/add: product
                                            POST /wishlist/remove: product
    POST /product/3/review rating, nickname, title, body
    GET  /checkout                          POST /checkout: name, street, city, zip, phone, shipping
                                            (Flat Rate or Express): an order; the cart is empty
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
    sale_total(id, customer_id, customer, day, status, items, total)        a view
    cart(id, product_id, option, quantity), wish(product_id), message(id, name, email, body)
"""
from envs.web import words
from envs.web.pages import (Field, Filter, Form, Problem, act, area, bullets, form_page, heading,
                            html, link, listing, money, number, paragraphs, select, table)

NAME, COLOUR, ABOUT = "One Stop Market", "#1f5f8b", "a shop"
CATEGORIES = ("Kitchen", "Electronics", "Clothing", "Garden", "Beauty", "Toys")
STATUSES = ("Pending", "Processing", "Complete", "Canceled")
SORTS = {"name": ("Name", "name"), "price": ("Price: low to high", "price"),
         "price_desc": ("Price: high to low", "price DESC"), "rating": ("Rating", "rating DESC"),
         "newest": ("Newest", "added DESC")}
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
CREATE TABLE cart(id INTEGER PRIMARY KEY, product_id INT, option TEXT, quantity INT,
    UNIQUE(product_id, option));
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
    goods = [(kind, brand) for kind in words.lines_of(words.GOODS)
             for brand in rng.sample(words.BRANDS, 2)]
    rng.shuffle(goods)
    prices, options = {}, {}
    for key, ((category, kind, dollars, option, topics), brand) in enumerate(goods, 1):
        low, high = map(int, dollars.split())
        prices[key] = 100 * rng.randint(low, high) - rng.choice((1, 5, 50))
        option, _, options[key] = option.partition(": ")
        topics = topics.split(", ")
        story, more = rng.choice(words.DESCRIPTIONS)
        words.add(db, "product", key, f"{category[:2].upper()}-{1000 + 7 * key}",
                  f"{brand} {kind}", brand, category, prices[key], 0,
                  f"{story} Customers like the {rng.choice(topics)}. {more}", option,
                  options[key], 1, words.day(rng, 2020, 2021))
        for _ in range(rng.randint(6, 12)):
            rating, topic = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 5)), rng.choice(topics)
            title, body = rng.choice(words.REVIEWS[min(max(rating, 2), 4)])
            words.add(db, "review", None, key,
                      f"{rng.choice(words.FIRST)} {rng.choice(words.LAST)[0]}.",
                      words.day(rng, 2022, 2023), rating, title, body.format(topic=topic), topic,
                      rng.choice(("Approved",) * 7 + ("Pending",)))
    for key, name in enumerate(["Nora Whitlock", *words.people(rng, 39)], 1):
        town, _, code, *_ = rng.choice(words.TOWNS)
        words.add(db, "customer", key, name, name.lower().replace(" ", ".") + "@example.com",
                  f"555-01{key + 20}", words.address(rng), town, code, words.day(rng, 2019, 2021),
                  rng.randint(0, 1))
    for key, day in enumerate(sorted(words.day(rng, 2022, 2023) for _ in range(240)), 1):
        buyer = 1 if key % 16 == 0 else rng.randint(2, 40)
        words.add(db, "sale", key, buyer, day, "", *db.execute(
            "SELECT name, street, city, zip, phone FROM customer WHERE id = ?", (buyer,)
            ).fetchone(), *rng.choice((("Flat Rate", 500), ("Express", 1500))), "")
        for thing in rng.sample(sorted(prices), rng.choice((1, 1, 2, 3))):
            words.add(db, "sale_line", None, key, thing, rng.choice(options[thing].split(", ")),
                      1, prices[thing])


# ---- forms --------------------------------------------------------------------------------------

QUANTITY = Field("Qty", "quantity", "whole", 0, 100)
ADDRESS = [Field(name.title(), name, most=100) for name in ("street", "city", "zip", "phone")]
SEARCH = Form("Search", Field("Search", "q"), inline=True)
UPDATE = Form("Update", number("line"), QUANTITY)
WISH = Form("Add to Wish List", number("product"))
REVIEW = Form("Submit Review", select("Rating", "rating", [(n, f"{n} of 5") for n in range(1, 6)]),
              Field("Nickname", "nickname", most=40), Field("Summary", "title"),
              area("Review", "body"))
CHECKOUT = Form("Place Order", Field("Name", "name", most=100), *ADDRESS, select(
    "Shipping", "shipping", [("Flat Rate", "Flat Rate $5.00"), ("Express", "Express $15.00")]))
ACCOUNT = Form("Save", Field("Email", "email", most=100), *ADDRESS,
               Field("Subscribed to the newsletter", "newsletter", "checkbox"))
CONTACT = Form("Submit", Field("Name", "name"), Field("Email", "email"),
               area("What's on your mind?", "message"))
CANCEL, REORDER = Form("Cancel Order"), Form("Reorder")


def cart_form(p):
    """The form that puts this product into the cart; None: any, as it comes back."""
    option = Field("", "option", least=0) if p is None else select(
        p["option_name"], "option", p["option_values"].split(", "))
    return Form("Add to Cart", number("product"), *[option] * (p is None or bool(option.label)),
                QUANTITY)


# ---- pages --------------------------------------------------------------------------------------

def bar(ask):
    count = ask.value("SELECT coalesce(sum(quantity), 0) FROM cart")
    return [SEARCH.show(ask, "/search", ask.query, "get"), link("/cart", f"My Cart ({count})"),
            link("/wishlist", "My Wish List"), link("/orders", "My Orders"),
            link("/account", "My Account"), link("/contact", "Contact Us")]


def home(ask):
    best = ask.rows("SELECT * FROM shown ORDER BY rating DESC, id LIMIT 6")
    return NAME, [heading("Categories"),
                  bullets([link(f"/category/{name}", name) for name in CATEGORIES], "row"),
                  heading("Best rated"), cards(best)]


def cards(products):
    return bullets([html("{}<br>{}<br>{}", product_link(p), money(p["price"]), stars(p))
                    for p in products], "cards")


def product_link(p):
    return link(f"/product/{p['id']}", p["name"])


def stars(p):
    return html('<span class="small">{}</span>',
                f"Rating: {p['rating']} of 5" if p["rating"] else "Not rated yet")


def search(ask, category=""):
    """The products that match the words, the category and the prices, a page of them."""
    if category not in ("", *CATEGORIES):
        raise Problem(404, "There is no such category.")
    filters = [Filter("Price from", "low", "price >= 100 * CAST(? AS REAL)"),
               Filter("to", "high", "price <= 100 * CAST(? AS REAL)")]
    if not category:
        filters = [Filter("Words", "q", "name || ' ' || category"),
                   Filter("Category", "category", "category = ?", CATEGORIES), *filters]
    return category or f"Search results for: '{ask.query.get('q', '')}'", listing(
        ask, "SELECT * FROM shown WHERE ? IN ('', category) AND FILTERS ORDER", cards, *filters,
        given=[category], sorts=SORTS, per_page=12)


def product(ask, key):
    p = ask.row("SELECT * FROM shown WHERE id = ?", key)
    return p["name"], [
        html("<p>{} · SKU {} · {}</p><p><strong>{}</strong> · {}</p>",
             link(f"/category/{p['category']}", p["category"]), p["sku"], stars(p),
             money(p["price"]), "In stock" if p["stock"] else "Out of stock"),
        cart_form(p).show(ask, "/cart/add", dict(product=p["id"], quantity=1)) if p["stock"]
        else None, WISH.show(ask, "/wishlist/add", dict(product=p["id"])),
        heading("Details"), paragraphs(p["description"]), heading("Reviews"),
        listing(ask, "SELECT * FROM review WHERE product_id = ? AND status = 'Approved' ORDER BY "
                "day DESC, id DESC", review_list, given=[p["id"]]),
        heading("Write a review"), REVIEW.show(ask, f"/product/{p['id']}/review", dict(rating=5))]


def review_list(reviews):
    return bullets(html('<strong>{title}</strong><br>Rating: {rating} of 5<br>{body}<br><span '
                        'class="small">Review by {nickname}, {day}</span>', **r) for r in reviews)


CART = """SELECT cart.id AS line, product.*, option, quantity, price * quantity AS amount
          FROM cart JOIN product ON product.id = product_id ORDER BY line"""


def cart(ask):
    lines = ask.rows(CART)
    if not lines:
        return "Shopping Cart", html("<p>You have no items in your shopping cart.</p>")
    return "Shopping Cart", [
        table(["Item", "Option", "Price", "Qty", "Subtotal"], [
            [product_link(x), x["option"], money(x["price"]), UPDATE.show(ask, "/cart/update", x),
             money(x["amount"])] for x in lines]),
        html("<p>Subtotal: <strong>{}</strong></p><p>{}</p>",
             money(sum(x["amount"] for x in lines)), link("/checkout", "Proceed to Checkout"))]


def checkout(ask):
    lines = ask.rows(CART)
    return "Checkout", [
        table(["Item", "Option", "Qty", "Subtotal"],
              [[x["name"], x["option"], x["quantity"], money(x["amount"])] for x in lines]),
        heading("Shipping Address"),
        CHECKOUT.show(ask, "/checkout", ask.row("SELECT * FROM customer WHERE id = 1"))
    ] if lines else html("<p>You have no items in your shopping cart.</p>")


def wish_list(ask):
    found = ask.rows("SELECT shown.* FROM wish JOIN shown ON id = product_id ORDER BY id")
    return "My Wish List", table(["Product", "Price", "", ""], [
        [product_link(p), money(p["price"]), stars(p), WISH.show(
            ask, "/wishlist/remove", dict(product=p["id"]), button="Remove")] for p in found],
        "You have no items in your wish list.")


def orders(ask):
    return "My Orders", listing(
        ask, "SELECT * FROM sale_total WHERE customer_id = 1 ORDER BY day DESC, id DESC",
        lambda found: table(["Order #", "Date", "Ship To", "Order Total", "Status", ""], [
            [f"{x['id']:09}", x["day"], x["customer"], money(x["total"]), x["status"],
             link(f"/order/{x['id']}", "View Order")] for x in found]))


def order(ask, key):
    x = ask.row("SELECT sale.*, total FROM sale JOIN sale_total USING (id) "
                "WHERE id = ? AND sale.customer_id = 1", key)
    return f"Order # {x['id']:09}", [
        html("<p>{status} · {day}</p>", **x), order_lines(ask, x),
        REORDER.show(ask, f"/order/{x['id']}/reorder"),
        CANCEL.show(ask, f"/order/{x['id']}/cancel") if x["status"] == "Pending" else None]


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


ROUTES = [
    ("GET", "/", home), ("GET", "/search", search), ("GET", "/category/(.+)", search),
    ("GET", "/product/(\\d+)", product), ("GET", "/cart", cart), ("GET", "/checkout", checkout),
    ("GET", "/wishlist", wish_list), ("GET", "/orders", orders), ("GET", "/order/(\\d+)", order),
    ("POST", "/product/(\\d+)/review", act(
        REVIEW, "/product/{0}", "INSERT INTO review SELECT NULL, id, :nickname, :today, :rating, "
        ":title, :body, '', 'Approved' FROM shown WHERE id = :a")),
    ("POST", "/cart/add", act(
        cart_form(None), "/cart", "INSERT INTO cart SELECT NULL, id, :option, :quantity FROM shown "
        "WHERE id = :product AND stock > 0 AND :quantity > 0 AND "
        "instr(', ' || option_values || ', ', ', ' || :option || ', ') "
        "ON CONFLICT DO UPDATE SET quantity = min(quantity + excluded.quantity, 100)")),
    ("POST", "/cart/update", act(UPDATE, "/cart", "UPDATE cart SET quantity = :quantity "
                                 "WHERE id = :line", "DELETE FROM cart WHERE quantity = 0")),
    ("POST", "/wishlist/add", act(WISH, "/wishlist", "INSERT OR REPLACE INTO wish "
                                  "SELECT id FROM shown WHERE id = :product")),
    ("POST", "/wishlist/remove", act(WISH, "/wishlist",
                                     "DELETE FROM wish WHERE product_id = :product")),
    ("POST", "/checkout", act(
        CHECKOUT, "/order/{new}", "INSERT INTO sale SELECT NULL, 1, :today, 'Pending', :name, "
        ":street, :city, :zip, :phone, :shipping, CASE :shipping WHEN 'Express' THEN 1500 "
        "ELSE 500 END, '' WHERE EXISTS (SELECT 1 FROM cart)",
        "INSERT INTO sale_line SELECT NULL, (SELECT max(id) FROM sale), product_id, option, "
        "quantity, price FROM cart JOIN product ON product.id = product_id",
        "UPDATE product SET stock = max(stock - (SELECT sum(quantity) FROM cart WHERE product_id "
        "= product.id), 0) WHERE id IN (SELECT product_id FROM cart)", "DELETE FROM cart")),
    ("POST", "/order/(\\d+)/cancel", act(
        CANCEL, "/order/{0}", "UPDATE sale SET status = 'Canceled' WHERE id = :a AND "
        "customer_id = 1 AND status = 'Pending'")),
    ("POST", "/order/(\\d+)/reorder", act(
        REORDER, "/cart", "INSERT INTO cart SELECT NULL, product_id, option, quantity FROM "
        "sale_line WHERE sale_id = (SELECT id FROM sale WHERE id = :a AND customer_id = 1) "
        "ON CONFLICT DO UPDATE SET quantity = min(quantity + excluded.quantity, 100)")),
    ("GET", "/account", form_page("My Account", ACCOUNT, "/account",
                                  "SELECT * FROM customer WHERE id = 1")),
    ("POST", "/account", act(ACCOUNT, "/account", "UPDATE customer SET email = :email, phone = "
                             ":phone, street = :street, city = :city, zip = :zip, newsletter = "
                             ":newsletter WHERE id = 1")),
    ("GET", "/contact", form_page("Contact Us", CONTACT, "/contact")),
    ("POST", "/contact", act(CONTACT, "/contact/sent",
                             "INSERT INTO message VALUES (NULL, :name, :email, :message)")),
    ("GET", "/contact/sent", lambda ask: ("Contact Us", "Thanks for contacting us.")),
]
