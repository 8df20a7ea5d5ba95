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
    GET  /admin/reports/bestsellers     by from=, to= (days)    GET /admin/reports/searches
    GET  /admin/reports/sales           the same, by month      GET /admin/reports/customers

Tables: those of shop.py, and
    note(id, sale_id, day, body)        comments on an order
    search_term(id, query, results, uses)
    bestseller_line(product_id, name, day, quantity, amount)    a view: orders not canceled
What is asked about: bestsellers of a period, orders and takings by month, status or customer,
stock, reviews that wait or that customers wrote, search terms. What is done: every form above.
"""
from envs.web import words
from envs.web.pages import (Field, Filter, Form, Problem, act, area, form_page, heading, html, link,
                            listing, money, paragraphs, select, table)
from envs.web.shop import ADDRESS, CATEGORIES, STATUSES, order_lines

NAME, COLOUR, ABOUT = "Luma Admin", "#5b3a29", "the administration of the shop"
REVIEWED = ("Approved", "Pending", "Not Approved")
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


# ---- forms --------------------------------------------------------------------------------------

STATUS = Form("Update Status", select("Status", "status", STATUSES), inline=True)
SHIP = Form("Submit Shipment", Field("Tracking Number", "tracking", most=60), inline=True)
MOVE = Form("Save Order Address", *ADDRESS[:3])
COMMENT = Form("Submit Comment", area("Comment", "comment"))
CUSTOMER = Form("Save Customer", Field("Email", "email", most=100), *ADDRESS)
PRICE, STOCK = Field("Price", "price", "cents"), Field("Quantity", "stock", "whole", 0, 10**6)
TEXT = area("Description", "description", least=0)
PRODUCT = Form("Save", Field("Product Name", "name"), PRICE, STOCK,
               Field("Enable Product", "enabled", "checkbox"), TEXT)
NEW = Form("Save", Field("Product Name", "name"), Field("SKU", "sku", most=40),
           select("Category", "category", CATEGORIES), PRICE, STOCK, TEXT)
MODERATE = Form("Save Review", select("Status", "status", REVIEWED), inline=True)
DELETE = Form("Delete Review", inline=True)
PERIOD = (Filter("From", "from", "day >= ?"), Filter("To", "to", "day <= ?"))


# ---- pages --------------------------------------------------------------------------------------

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
    return "Dashboard", [
        html("<p>Lifetime Sales: <strong>{}</strong> · Average Order: <strong>{}</strong></p>",
             money(total["sum"]), money(total["mean"])),
        heading("Last Orders"), order_table(ask.rows(
            "SELECT * FROM sale_total ORDER BY day DESC, id DESC LIMIT 5")),
        heading("Bestsellers"), bestseller_table(ask.rows(
            BESTSELLERS.replace("FILTERS", "1") + " LIMIT 5")),
        heading("Top Search Terms"), term_table(ask.rows(SEARCHES + " LIMIT 5"))]


def orders(ask):
    return "Orders", listing(
        ask, "SELECT * FROM sale_total WHERE FILTERS ORDER BY day DESC, id DESC", order_table,
        Filter("Status", "status", "status = ?", STATUSES),
        Filter("Customer", "customer", "customer"), *PERIOD,
        Filter("Total from", "low", "total >= 100 * CAST(? AS REAL)"),
        Filter("Total to", "high", "total <= 100 * CAST(? AS REAL)"))


def order_table(found):
    return table(["ID", "Purchase Date", "Customer", "Items", "Grand Total", "Status", ""], [
        [f"{x['id']:09}", x["day"], x["customer"], x["items"], money(x["total"]), x["status"],
         link(f"/admin/order/{x['id']}", "View")] for x in found])


def order(ask, key):
    x = ask.row("SELECT sale.*, total, email FROM sale JOIN sale_total USING (id) "
                "JOIN customer ON customer.id = sale.customer_id WHERE sale.id = ?", key)
    notes = ask.rows("SELECT day, body FROM note WHERE sale_id = ? ORDER BY id DESC LIMIT 20", key)
    path = f"/admin/order/{x['id']}"
    return f"Order # {x['id']:09}", [
        html("<p>{day} · Status: <strong>{status}</strong> · {} · {email}</p>",
             link(f"/admin/customer/{x['customer_id']}", x["name"]), **x), order_lines(ask, x),
        STATUS.show(ask, f"{path}/status", x), SHIP.show(ask, f"{path}/ship", x),
        heading("Edit Address"), MOVE.show(ask, f"{path}/address", x),
        heading("Comments"), table(["Date", "Comment"], notes, "No comments."),
        COMMENT.show(ask, f"{path}/comment")]


def customers(ask):
    return "Customers", listing(
        ask, "SELECT * FROM customer WHERE FILTERS ORDER BY id", lambda found: table(
            ["Name", "Email", "Phone", "ZIP", "City", "Customer Since"],
            [[link(f"/admin/customer/{x['id']}", x["name"]), x["email"], x["phone"], x["zip"],
              x["city"], x["since"]] for x in found]),
        Filter("Search by keyword", "q", "name || ' ' || email || ' ' || phone || ' ' || city "
                                         "|| ' ' || zip"))


def customer(ask, key):
    x = ask.row("SELECT * FROM customer WHERE id = ?", key)
    return x["name"], [
        html("<p>Customer since {since} · Newsletter: {}</p>",
             "subscribed" if x["newsletter"] else "not subscribed", **x),
        CUSTOMER.show(ask, f"/admin/customer/{x['id']}", x), heading("Orders"),
        listing(ask, "SELECT * FROM sale_total WHERE customer_id = ? ORDER BY day DESC",
                order_table, given=[key])]


def products(ask):
    return "Products", [html("<p>{}</p>", link("/admin/products/new", "Add Product")), listing(
        ask, "SELECT * FROM product WHERE FILTERS ORDER BY id", lambda found: table(
            ["ID", "Name", "SKU", "Category", "Price", "Quantity", "Status"],
            [[x["id"], link(f"/admin/product/{x['id']}", x["name"]), x["sku"], x["category"],
              money(x["price"]), x["stock"], "Enabled" if x["enabled"] else "Disabled"]
             for x in found]),
        Filter("Search by keyword", "q", "name || ' ' || sku"),
        Filter("Category", "category", "category = ?", CATEGORIES),
        Filter("Stock", "stock", "stock < CASE ? WHEN 'out' THEN 1 ELSE 10 END",
               (("out", "Out of stock"), ("low", "Below 10"))))]


def product(ask, key):
    x = ask.row("SELECT * FROM product WHERE id = ?", key)
    return x["name"], [
        html("<p>SKU {sku} · {category} · since {added} · {}</p>",
             link(f"/admin/reviews?product={x['id']}", "Reviews"), **x),
        PRODUCT.show(ask, f"/admin/product/{x['id']}", x)]


def reviews(ask):
    return "Reviews", listing(
        ask, "SELECT review.*, name FROM review JOIN product ON product.id = product_id "
        "WHERE FILTERS ORDER BY day DESC, review.id", lambda found: table(
            ["Created", "Status", "Title", "Nickname", "Rating", "Product", ""],
            [[x["day"], x["status"], x["title"], x["nickname"], x["rating"], x["name"],
              link(f"/admin/review/{x['id']}", "Edit")] for x in found]),
        Filter("Status", "status", "status = ?", REVIEWED),
        Filter("Rating", "rating", "rating = CAST(? AS INT)", tuple("12345")),
        Filter("Product ID", "product", "product_id = CAST(? AS INT)"),
        Filter("Search by keyword", "q", "title || ' ' || body || ' ' || nickname || ' ' || name"))


def review(ask, key):
    x = ask.row("SELECT review.*, name FROM review JOIN product ON product.id = product_id "
                "WHERE review.id = ?", key)
    return x["title"], [
        html("<p>{name} · {nickname}, {day} · Rating: {rating} of 5</p>{}", paragraphs(x["body"]),
             **x), MODERATE.show(ask, f"/admin/review/{x['id']}", x),
        DELETE.show(ask, f"/admin/review/{x['id']}/delete")]


# ---- reports: SQL, and how its rows are shown ---------------------------------------------------

BESTSELLERS = """SELECT name, sum(quantity) AS quantity, sum(amount) AS amount FROM bestseller_line
    WHERE FILTERS GROUP BY product_id ORDER BY quantity DESC, name"""
SALES = """SELECT substr(day, 1, 7) AS month, count(*) AS orders, sum(items) AS items,
    sum(total) AS total FROM sale_total WHERE status != 'Canceled' AND FILTERS
    GROUP BY month ORDER BY month"""
BUYERS = """SELECT customer.name, count(*) AS orders, sum(total) AS total FROM sale_total
    JOIN customer ON customer.id = customer_id WHERE status != 'Canceled' AND FILTERS
    GROUP BY customer_id ORDER BY orders DESC, customer.name"""
SEARCHES = "SELECT query, results, uses FROM search_term ORDER BY uses DESC, query"


def bestseller_table(found):
    return table(["Product", "Order Quantity", "Sales"],
                 [[x["name"], x["quantity"], money(x["amount"])] for x in found])


def sales_table(found):
    return table(["Month", "Orders", "Items", "Sales Total"],
                 [[x["month"], x["orders"], x["items"], money(x["total"])] for x in found])


def buyer_table(found):
    return table(["Customer", "Orders", "Sales Total"],
                 [[x["name"], x["orders"], money(x["total"])] for x in found])


def term_table(found):
    return table(["Search Query", "Results", "Uses"], found)


REPORTS = {"bestsellers": ("Bestsellers Report", BESTSELLERS, bestseller_table, PERIOD),
           "sales": ("Sales Report", SALES, sales_table, PERIOD),
           "customers": ("Order Count Report", BUYERS, buyer_table, PERIOD),
           "searches": ("Search Terms Report", SEARCHES, term_table, ())}


def report(ask, name):
    if name not in REPORTS:
        raise Problem(404, "There is no such report.")
    title, sql, show, filters = REPORTS[name]
    return title, listing(ask, sql, show, *filters)


ORDER, BACK = "/admin/order/(\\d+)", "/admin/order/{0}"
ROUTES = [
    ("GET", "/", lambda ask: "/admin"), ("GET", "/admin/?", dashboard),
    ("GET", "/admin/orders", orders), ("GET", ORDER, order), ("GET", "/admin/customers", customers),
    ("GET", "/admin/customer/(\\d+)", customer), ("GET", "/admin/products", products),
    ("GET", "/admin/product/(\\d+)", product), ("GET", "/admin/reviews", reviews),
    ("GET", "/admin/review/(\\d+)", review), ("GET", "/admin/reports/(\\w+)", report),
    ("POST", f"{ORDER}/status", act(
        STATUS, BACK, "UPDATE sale SET status = :status WHERE id = :a")),
    ("POST", f"{ORDER}/ship", act(
        SHIP, BACK, "UPDATE sale SET status = 'Complete', tracking = :tracking WHERE id = :a")),
    ("POST", f"{ORDER}/address", act(
        MOVE, BACK, "UPDATE sale SET street = :street, city = :city, zip = :zip WHERE id = :a")),
    ("POST", f"{ORDER}/comment", act(
        COMMENT, BACK, "INSERT INTO note SELECT NULL, id, :today, :comment FROM sale "
        "WHERE id = :a")),
    ("POST", "/admin/customer/(\\d+)", act(
        CUSTOMER, "/admin/customer/{0}", "UPDATE customer SET email = :email, phone = :phone, "
        "street = :street, city = :city, zip = :zip WHERE id = :a")),
    ("GET", "/admin/products/new", form_page("New Product", NEW, "/admin/products")),
    ("POST", "/admin/products", act(
        NEW, "/admin/product/{new}", "INSERT INTO product VALUES (NULL, :sku, :name, '', "
        ":category, :price, :stock, :description, '', '', 1, :today)")),
    ("POST", "/admin/product/(\\d+)", act(
        PRODUCT, "/admin/product/{0}", "UPDATE product SET name = :name, price = :price, stock = "
        ":stock, enabled = :enabled, description = :description WHERE id = :a")),
    ("POST", "/admin/review/(\\d+)", act(
        MODERATE, "/admin/review/{0}", "UPDATE review SET status = :status WHERE id = :a")),
    ("POST", "/admin/review/(\\d+)/delete", act(
        DELETE, "/admin/reviews", "DELETE FROM review WHERE id = :a")),
]
