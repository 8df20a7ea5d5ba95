"""Luma Admin, http://luma.com/admin: the administration of the shop, over the shop's own tables.

Pages, and what their forms send:
    GET  /admin                         lifetime sales, last orders, bestsellers, search terms
    GET  /admin/orders?status=          also from=, to= (days), low=, high= (dollars), customer=,
                                        page=
    GET  /admin/order/5                 POST /admin/order/5/status: status
                                        POST /admin/order/5/ship: tracking
                                        POST /admin/order/5/comment: comment
                                        POST /admin/order/5/address: street, city, zip
    GET  /admin/customers?q=            words of name, email, phone, city, zip
    GET  /admin/customer/3              POST /admin/customer/3: email, phone, street, city, zip
    GET  /admin/products?q=&category=   also stock=out or low (below 10), page=
    GET  /admin/product/3               POST /admin/product/3: name, price, stock, description,
                                        enabled (1, or left out)
    GET  /admin/products/new            POST /admin/products: name, sku, category, price, stock,
                                        description
    GET  /admin/reviews?status=&q=      also rating=, product=, page=
    GET  /admin/review/5                POST /admin/review/5: status
                                        POST /admin/review/5/delete
    GET  /admin/reports/bestsellers?from=&to=      GET /admin/reports/sales?from=&to=   (by month)
    GET  /admin/reports/customers?from=&to=        GET /admin/reports/searches

Tables: those of shop.py, and
    note(id, sale_id, day, body)        comments on an order
    search_term(id, query, results, uses)
    View bestseller_line(product_id, name, day, quantity, amount): lines of orders not canceled.
What is asked about: bestsellers of a period, orders and takings by month, status or customer,
stock, reviews that wait or that customers wrote, search terms. What is done: every form above.
"""
from envs.web import words
from envs.web.pages import (TODAY, Problem, area, checkbox, field, form, html, link, money,
                            paragraphs, select, table)
from envs.web.shop import CATEGORIES, STATUSES, order_lines

NAME, COLOUR, ABOUT = "Luma Admin", "#5b3a29", "the administration of the shop"
REVIEWED = ("Approved", "Pending", "Not Approved")
ADDRESS = ("street", "city", "zip")
SCHEMA = """
CREATE TABLE note(id INTEGER PRIMARY KEY, sale_id INT, day TEXT, body TEXT);
CREATE TABLE search_term(id INTEGER PRIMARY KEY, query TEXT, results INT, uses INT);
CREATE VIEW bestseller_line AS SELECT product_id, product.name, day, quantity,
    quantity * sale_line.price AS amount FROM sale_line JOIN sale ON sale.id = sale_id
    JOIN product ON product.id = product_id WHERE status != 'Canceled';
"""
VARY = ("UPDATE search_term SET uses = 1 + LUCK % 97",)


def fill(db, rng):
    for query in words.SEARCHES:
        db.execute("INSERT INTO search_term VALUES (NULL, ?, ?, 0)", (query, rng.randint(0, 9)))


def bar(ask):
    return [link(f"/admin{path}", text) for path, text in (
        ("", "Dashboard"), ("/orders", "Orders"), ("/customers", "Customers"),
        ("/products", "Products"), ("/reviews", "Reviews"),
        ("/reports/bestsellers", "Bestsellers"), ("/reports/sales", "Sales"),
        ("/reports/customers", "Customer totals"), ("/reports/searches", "Search terms"))]


def start(ask):
    return "/admin"


def dashboard(ask):
    total = ask.row("SELECT sum(total) AS sum, avg(total) AS mean FROM sale_total "
                    "WHERE status != 'Canceled'")
    latest = ask.rows("SELECT * FROM sale_total ORDER BY day DESC, id DESC LIMIT 5")
    return "Dashboard", [
        html("<p>Lifetime Sales: <strong>{}</strong> · Average Order: <strong>{}</strong></p>",
             money(total["sum"]), money(total["mean"])),
        html("<h2>Last Orders</h2>"), table(["Customer", "Items", "Total"], [
            [link(f"/admin/order/{x['id']}", x["customer"]), x["items"], money(x["total"])]
            for x in latest]),
        html("<h2>Bestsellers</h2>"), bestseller_table(ask, "", "9", 5),
        html("<h2>Top Search Terms</h2>"), term_table(ask, 5)]


# ---- orders and customers -----------------------------------------------------------------------

def orders(ask):
    condition, values = ask.where(
        status="status = ?", customer="customer", low="total >= 100 * CAST(? AS REAL)",
        high="total <= 100 * CAST(? AS REAL)", **PERIOD)
    found, count, links = ask.paged(f"SELECT * FROM sale_total WHERE {condition} "
                                    "ORDER BY day DESC, id DESC", *values)
    return "Orders", [
        filters(ask, select("Status", "status", [("", "All"), *STATUSES],
                            ask.query.get("status", "")),
                *[field(label, name, ask.query.get(name, "")) for label, name in (
                    ("Customer", "customer"), ("From", "from"), ("To", "to"),
                    ("Total from", "low"), ("Total to", "high"))]),
        html("<p>{} records found</p>", count), order_table(found), links]


PERIOD = {"from": "day >= ?", "to": "day <= ?"}


def filters(ask, *fields):
    return form(ask.path, "Filter", *fields, method="get", kind="inline")


def order_table(found):
    return table(["ID", "Purchase Date", "Customer", "Items", "Grand Total", "Status", ""], [
        [f"{x['id']:09}", x["day"], x["customer"], x["items"], money(x["total"]), x["status"],
         link(f"/admin/order/{x['id']}", "View")] for x in found])


def order(ask, number):
    x = ask.row("SELECT sale.*, total, email FROM sale JOIN sale_total USING (id) "
                "JOIN customer ON customer.id = sale.customer_id WHERE sale.id = ?", number)
    notes = ask.rows("SELECT * FROM note WHERE sale_id = ? ORDER BY id DESC LIMIT 20", x["id"])
    path = f"/admin/order/{x['id']}"
    return f"Order # {x['id']:09}", [
        html("<p>{day} · Status: <strong>{status}</strong> · {} · {email}</p>",
             link(f"/admin/customer/{x['customer_id']}", x["name"]), **x), order_lines(ask, x),
        form(f"{path}/status", "Update Status", select("Status", "status", STATUSES, x["status"]),
             kind="inline"),
        form(f"{path}/ship", "Submit Shipment", field("Tracking Number", "tracking"),
             kind="inline"),
        html("<h2>Edit Address</h2>"),
        form(f"{path}/address", "Save Order Address",
             *[field(name.title(), name, x[name]) for name in ADDRESS]),
        html("<h2>Comments</h2>"), table(["Date", "Comment"], [[y["day"], y["body"]]
                                                               for y in notes], "No comments."),
        form(f"{path}/comment", "Submit Comment", area("Comment", "comment"))]


def change_order(ask, number, what):
    number = ask.value("SELECT id FROM sale WHERE id = ?", number)
    if what == "status":
        ask.run("UPDATE sale SET status = ? WHERE id = ?", ask.choice("status", STATUSES), number)
    elif what == "ship":
        ask.run("UPDATE sale SET status = 'Complete', tracking = ? WHERE id = ?",
                ask.text("tracking", 60), number)
    elif what == "address":
        ask.run("UPDATE sale SET street = ?, city = ?, zip = ? WHERE id = ?",
                *[ask.text(name, 100) for name in ADDRESS], number)
    else:
        ask.run("INSERT INTO note VALUES (NULL, ?, ?, ?)", number, TODAY,
                ask.text("comment", 1000))
    return f"/admin/order/{number}"


def customers(ask):
    condition, values = ask.where(
        q="name || ' ' || email || ' ' || phone || ' ' || city || ' ' || zip")
    found, count, links = ask.paged(f"SELECT * FROM customer WHERE {condition} ORDER BY id",
                                    *values)
    return "Customers", [
        filters(ask, field("Search by keyword", "q", ask.query.get("q", ""))),
        html("<p>{} records found</p>", count),
        table(["Name", "Email", "Phone", "ZIP", "City", "Customer Since"], [
            [link(f"/admin/customer/{x['id']}", x["name"]), x["email"], x["phone"], x["zip"],
             x["city"], x["since"]] for x in found]), links]


def customer(ask, number):
    x = ask.row("SELECT * FROM customer WHERE id = ?", number)
    found = ask.rows("SELECT * FROM sale_total WHERE customer_id = ? ORDER BY day DESC LIMIT 30",
                     x["id"])
    return x["name"], [
        html("<p>Customer since {since} · Newsletter: {}</p>",
             "subscribed" if x["newsletter"] else "not subscribed", **x),
        form(f"/admin/customer/{x['id']}", "Save Customer", *[
            field(name.title(), name, x[name]) for name in ("email", "phone", *ADDRESS)]),
        html("<h2>Orders</h2>"), order_table(found)]


def save_customer(ask, number):
    ask.run("UPDATE customer SET email = ?, phone = ?, street = ?, city = ?, zip = ? WHERE id = ?",
            *[ask.text(name, 100) for name in ("email", "phone", *ADDRESS)], number)
    return f"/admin/customer/{number}"


# ---- products and reviews -----------------------------------------------------------------------

def products(ask):
    condition, values = ask.where(
        q="name || ' ' || sku", category="category = ?",
        stock="stock < CASE ? WHEN 'out' THEN 1 WHEN 'low' THEN 10 ELSE 1000000 END")
    found, count, links = ask.paged(f"SELECT * FROM product WHERE {condition} ORDER BY id",
                                    *values)
    return "Products", [
        filters(ask, field("Search by keyword", "q", ask.query.get("q", "")),
                select("Category", "category", [("", "All"), *CATEGORIES],
                       ask.query.get("category", "")),
                select("Stock", "stock", [("", "All"), ("out", "Out of stock"),
                                          ("low", "Below 10")], ask.query.get("stock", ""))),
        html("<p>{} records found. {}</p>", count, link("/admin/products/new", "Add Product")),
        table(["ID", "Name", "SKU", "Category", "Price", "Quantity", "Status"], [
            [x["id"], link(f"/admin/product/{x['id']}", x["name"]), x["sku"], x["category"],
             money(x["price"]), x["stock"], "Enabled" if x["enabled"] else "Disabled"]
            for x in found]), links]


def product(ask, number):
    x = ask.row("SELECT * FROM product WHERE id = ?", number)
    return x["name"], [
        html("<p>SKU {sku} · {category} · since {added} · {}</p>",
             link(f"/admin/reviews?product={x['id']}", "Reviews"), **x),
        form(f"/admin/product/{x['id']}", "Save",
             field("Product Name", "name", x["name"]),
             field("Price", "price", f"{x['price'] / 100:.2f}"),
             field("Quantity", "stock", x["stock"]),
             checkbox("Enable Product", "enabled", x["enabled"]),
             area("Description", "description", x["description"]))]


def save_product(ask, number):
    ask.run("UPDATE product SET name = ?, price = ?, stock = ?, enabled = ?, description = ? "
            "WHERE id = ?", ask.text("name", 100), ask.cents("price"),
            ask.whole("stock", 0, 10**6), "enabled" in ask.form,
            ask.text("description", 2000, least=0), number)
    return f"/admin/product/{number}"


def new_product(ask):
    return "New Product", form(
        "/admin/products", "Save", field("Product Name", "name"), field("SKU", "sku"),
        select("Category", "category", CATEGORIES), field("Price", "price"),
        field("Quantity", "stock"), area("Description", "description"))


def add_product(ask):
    name = ask.text("name", 100)
    ask.run("INSERT INTO product VALUES (NULL, ?, ?, '', ?, ?, ?, ?, '', '', 1, ?)",
            ask.text("sku", 40), name, ask.choice("category", CATEGORIES), ask.cents("price"),
            ask.whole("stock", 0, 10**6), ask.text("description", 2000, least=0), TODAY)
    return f"/admin/product/{ask.value('SELECT last_insert_rowid()')}"


def reviews(ask):
    condition, values = ask.where(
        status="review.status = ?", rating="rating = CAST(? AS INT)",
        product="product_id = CAST(? AS INT)", q="title || ' ' || body || ' ' || nickname || name")
    found, count, links = ask.paged(
        "SELECT review.*, name FROM review JOIN product ON product.id = product_id "
        f"WHERE {condition} ORDER BY day DESC, review.id", *values)
    return "Reviews", [
        filters(ask, select("Status", "status", [("", "All"), *REVIEWED],
                            ask.query.get("status", "")),
                select("Rating", "rating", [("", "All"), *"12345"], ask.query.get("rating", "")),
                field("Search by keyword", "q", ask.query.get("q", ""))),
        html("<p>{} records found</p>", count),
        table(["Created", "Status", "Title", "Nickname", "Rating", "Product", ""], [
            [x["day"], x["status"], x["title"], x["nickname"], x["rating"], x["name"],
             link(f"/admin/review/{x['id']}", "Edit")] for x in found]), links]


def review(ask, number):
    x = ask.row("SELECT review.*, name FROM review JOIN product ON product.id = product_id "
                "WHERE review.id = ?", number)
    return x["title"], [
        html("<p>{name} · {nickname}, {day} · Rating: {rating} of 5</p>{}", paragraphs(x["body"]),
             **x),
        form(f"/admin/review/{x['id']}", "Save Review",
             select("Status", "status", REVIEWED, x["status"]), kind="inline"),
        form(f"/admin/review/{x['id']}/delete", "Delete Review", kind="inline")]


def save_review(ask, number):
    ask.run("UPDATE review SET status = ? WHERE id = ?", ask.choice("status", REVIEWED), number)
    return f"/admin/review/{number}"


def delete_review(ask, number):
    ask.run("DELETE FROM review WHERE id = ?", number)
    return "/admin/reviews"


# ---- reports ------------------------------------------------------------------------------------

def report(ask, name):
    if name not in REPORTS:
        raise Problem(404, "There is no such report.")
    title, make = REPORTS[name]
    since, until = ask.query.get("from", ""), ask.query.get("to", "")
    return title, [filters(ask, field("From", "from", since), field("To", "to", until)),
                   make(ask, since, until or "9", 50)]


def bestseller_table(ask, since, until, most):
    return table(["Product", "Order Quantity", "Sales"], [
        [x["name"], x["quantity"], money(x["amount"])] for x in ask.rows(
            "SELECT name, sum(quantity) AS quantity, sum(amount) AS amount FROM bestseller_line "
            "WHERE day BETWEEN ? AND ? GROUP BY product_id ORDER BY 2 DESC, name LIMIT ?",
            since, until, most)])


def sales_table(ask, since, until, most):
    return table(["Month", "Orders", "Items", "Sales Total"], [
        [x["month"], x["orders"], x["items"], money(x["total"])] for x in ask.rows(
            "SELECT substr(day, 1, 7) AS month, count(*) AS orders, sum(items) AS items, "
            "sum(total) AS total FROM sale_total WHERE status != 'Canceled' AND day BETWEEN ? "
            "AND ? GROUP BY month ORDER BY month LIMIT ?", since, until, most)])


def customer_table(ask, since, until, most):
    return table(["Customer", "Orders", "Sales Total"], [
        [x["name"], x["orders"], money(x["total"])] for x in ask.rows(
            "SELECT customer.name, count(*) AS orders, sum(total) AS total FROM sale_total "
            "JOIN customer ON customer.id = customer_id WHERE status != 'Canceled' AND day "
            "BETWEEN ? AND ? GROUP BY customer_id ORDER BY orders DESC, customer.name LIMIT ?",
            since, until, most)])


def searches(ask):
    return "Search Terms Report", term_table(ask, 50)


def term_table(ask, most):
    return table(["Search Query", "Results", "Uses"], [
        [x["query"], x["results"], x["uses"]] for x in ask.rows(
            "SELECT * FROM search_term ORDER BY uses DESC, query LIMIT ?", most)])


REPORTS = {"bestsellers": ("Bestsellers Report", bestseller_table),
           "sales": ("Sales Report", sales_table),
           "customers": ("Order Count Report", customer_table)}
ROUTES = [
    ("GET", "/", start), ("GET", "/admin/?", dashboard), ("GET", "/admin/orders", orders),
    ("GET", "/admin/order/(\\d+)", order),
    ("POST", "/admin/order/(\\d+)/(status|ship|address|comment)", change_order),
    ("GET", "/admin/customers", customers), ("GET", "/admin/customer/(\\d+)", customer),
    ("POST", "/admin/customer/(\\d+)", save_customer), ("GET", "/admin/products", products),
    ("GET", "/admin/products/new", new_product), ("POST", "/admin/products", add_product),
    ("GET", "/admin/product/(\\d+)", product), ("POST", "/admin/product/(\\d+)", save_product),
    ("GET", "/admin/reviews", reviews), ("GET", "/admin/review/(\\d+)", review),
    ("POST", "/admin/review/(\\d+)", save_review),
    ("POST", "/admin/review/(\\d+)/delete", delete_review),
    ("GET", "/admin/reports/searches", searches), ("GET", "/admin/reports/(\\w+)", report),
]
