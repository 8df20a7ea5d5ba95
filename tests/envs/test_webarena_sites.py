"""pytest tests/envs/test_webarena_sites.py: the five sites of webarena, without a browser of
ours."""
import ast
import re
from collections import Counter
from html import escape
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

import pytest
import requests
from fakes import serving
from lxml.html import document_fromstring

from envs.web import shop
from envs.web import sites as web
from envs.web.sites import SITES, Sites

SHOP, ADMIN, FORUM, CODE, MAP = (f"http://{host}" for host in SITES)
MEAN = """<i-x a='1'>&amp;"</textarea>"""        # a tag that no page of ours has


class Reader:
    """A page read by lxml: tags, links, text with what stands in controls, fields of forms."""

    def __init__(self, page):
        root = document_fromstring(page.html)
        self.tags, self.links = Counter(at.tag for at in root.iter()), root.xpath("//a/@href")
        self.text = "\n".join([root.text_content(), *root.xpath("//@value")])
        self.forms = [(form.method, form.action, [
            (at.name, at.get("type", at.tag), at.value if at.tag == "select" else at.get("value"))
            for at in form.iter("input", "textarea", "select")]) for form in root.forms]
        for at in root.iter("input", "textarea", "select"):     # each control has a name
            assert at.get("type") == "hidden" or [*at.iterancestors("label")]


def crawl(sites, most=2):
    """{address: its Reader}: pages that links lead to, `most` for each address with its numbers
    and words to search for blanked; every one must be found."""
    found, left, kinds = {}, [f"{at}/" for at in (SHOP, ADMIN, FORUM, CODE, MAP)], Counter()
    while left:
        address = left.pop(0)
        kind = re.sub(r"\d+|(?<==)[^&]*", "N", address)
        if address in found or kinds[kind] >= most:
            continue
        kinds[kind] += 1
        page = sites.request("GET", address)
        assert page.status == 200, (address, page.html[-300:])
        found[address] = Reader(page)
        left += [urljoin(page.url, at) for at in found[address].links]
    return found


def posts(pages):
    """{action with numbers blanked: (action, fields)} of every form that pages post, the last of
    which take something away."""
    found = {re.sub(r"\d+", "N", urlsplit(where).netloc + action): (urljoin(where, action), fields)
             for where, page in pages.items() for method, action, fields in page.forms
             if method == "POST"}
    return dict(sorted(found.items(), key=lambda form: "delete" in form[0]))


def filled(fields, text, long=""):
    """The form's fields as (name, value): all that can be typed in holds this text (long: in areas)
    but for amounts and quantities."""
    texts = {"text": text, "textarea": long or text}
    return [(name, value or "1" if name in ("quantity", "price", "stock") else
             texts.get(kind, value)) for name, kind, value in fields]


@pytest.fixture
def sites():
    sites = Sites(3)
    yield sites
    sites.close()


@pytest.fixture(scope="module")
def pages():
    return crawl(Sites(3))


def column(sites, sql, *values):
    return [row[0] for row in sites.db.execute(sql, values)]


# ---- pages --------------------------------------------------------------------------------------

def test_every_link_of_every_page_leads_to_a_page(pages):
    """`crawl` asserts it; here: that it saw the sites, and what every page must have."""
    assert len(pages) > 250 and {urlsplit(at).netloc for at in pages} == {*SITES}
    for address, page in pages.items():
        assert page.tags["h1"] == page.tags["title"] == page.tags["main"] == 1, address
        assert not page.tags["script"] and not page.tags["iframe"], address


def test_templates_are_literals_and_markup_is_made_in_one_place():
    """So that text cannot get into a page but through `html`, which escapes it."""
    for path in Path(shop.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "html":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Html":
                assert path.name in ("pages.py", "sites.py"), f"{path.name}:{node.lineno}"


# ---- safety -------------------------------------------------------------------------------------

def test_markup_in_every_text_field_is_shown_as_text(pages):
    sites, shown = Sites(3), set()
    for kind, (action, fields) in posts(pages).items():
        page = sites.request("POST", action, filled(fields, MEAN))
        # a name of a forum or project, an address: refused, and every other is taken
        assert (page.status == 200) == (kind not in ("reddit.com/create_forum",
                                                     "gitlab.com/projects")), kind
    for path in ("/search?q=", "/category/", "/directions?to=a&from=", "/nearby?kind=Cafe&of=",
                 "/explore?q=", "/admin/orders?customer=", "/orders?page=2&x="):
        for at in (SHOP, ADMIN, FORUM, CODE, MAP):
            page = sites.request("GET", at + path + urlencode({"": MEAN})[1:])
            assert not Reader(page).tags["i-x"], page.url
    for address, page in crawl(sites).items():
        assert not page.tags["i-x"] and not page.tags["script"], address
        if MEAN in page.text:
            shown.add(urlsplit(address).netloc)
    assert shown == {*SITES} - {"openstreetmap.org"}       # which has nothing to write


def test_a_form_posted_a_thousand_times_stays_bounded(pages):
    """An episode's database may grow by 512 kB, which SQLite holds to; then a page says so."""
    sites, answers = Sites(3), Counter()
    before = len(sites.db.serialize())
    forms = [(action, fields) for action, fields in posts(pages).values()
             if any(kind == "textarea" for _, kind, _ in fields)]
    for n in range(1000):
        action, fields = forms[n % len(forms)]
        answers[sites.request("POST", action, filled(fields, f"w{n}", "long " * 300)).status] += 1
    assert answers[507] > 100 and len(sites.db.serialize()) <= before + 512 * 1024
    assert max(len(page.text) for page in crawl(sites).values()) < 150_000
    full = sites.request("POST", f"{SHOP}/contact", [("name", "A"), ("email", "b"),
                                                     ("message", "long " * 300)])
    assert full.status == 507 and "nothing was saved" in full.html


def test_a_seed_makes_the_sites_and_no_session_sees_another(pages):
    sites, other = Sites(3), Sites(3)
    before = other.db.serialize()
    assert sites.db.serialize() == before != Sites(6).db.serialize()
    for action, fields in posts(pages).values():
        sites.request("POST", action, filled(fields, "visible"))
    assert sites.db.serialize() != before == other.db.serialize() == Sites(3).db.serialize()


@pytest.mark.parametrize("address", [
    "http://example.org/", "https://onestopmarket.com/", "file:///etc/passwd", "http://[",
    "http://127.0.0.1:8000/", "http://onestopmarket.com:8080/", "http://me@onestopmarket.com/",
    "http://onestopmarket.com@evil.org/", "http://onestopmarket.com.evil.org/",
    "http://onestopmarket.com\\@evil.org/", "javascript:alert(1)", "", "onestopmarket.com",
    "//onestopmarket.com/"])
def test_only_the_sites_exist(sites, address):
    with pytest.raises(PermissionError, match="there are only http://onestopmarket.com"):
        sites.request("GET", address)


@pytest.mark.parametrize("address, says", [
    ("http://example.org/", "there are only"), ("//10.0.0.1/", "there are only"),
    ("file:///etc/passwd", "there are only"), ("/go", "more than five redirects")])
def test_no_redirect_leaves_the_sites(sites, monkeypatch, address, says):
    monkeypatch.setattr(shop, "ROUTES", [(verb, "/go", lambda ask: address)
                                         for verb in ("GET", "POST")])
    with pytest.raises(PermissionError, match=says):
        sites.request("POST", f"{SHOP}/go", [])


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/etc/passwd", "/etc/passwd", "//x",
                                  "/product/0", "/product/99999999999999999999", "/product/٣",
                                  "/category/Cars", "/order/1", "/cart/add"])
def test_a_path_that_is_no_page_is_a_404_of_the_site(sites, path):
    page = sites.request("GET", SHOP + path)
    assert page.status == 404 and "One Stop Market" in page.html


@pytest.mark.parametrize("form, says", [
    ([("body", "x" * 20_001)], "at most 20,000 letters"), ([("", "")] * 20_001, "at most 20,000"),
    ([], "Rating"), ([("rating", "6")], "Rating"),
    ([("rating", "5"), ("nickname", " "), ("title", "t"), ("body", "b")], "Nickname must have 1"),
    ([("rating", "5"), ("nickname", "n"), ("title", "t"), ("body", "b" * 2001)], "are 2001"),
])
def test_a_form_that_is_wrong_or_too_large_changes_nothing(sites, form, says):
    before = sites.db.serialize()
    page = sites.request("POST", f"{SHOP}/product/3/review", form)
    assert page.status in (400, 413) and says in page.html
    assert sites.request("GET", f"{SHOP}/search?q={'x' * 8001}").status == 413
    assert sites.db.serialize() == before


def test_letters_that_no_text_may_hold_are_left_out(sites):
    sites.request("POST", f"{FORUM}/submit", [("forum", "books"), ("title", "a\x00b\ud800c\x1b"),
                                              ("body", "one\r\ntwo\t")])
    assert tuple(*sites.db.execute("SELECT title, body FROM post ORDER BY id DESC LIMIT 1")) == (
        "abc", "one\ntwo")


# ---- what the sites say and do, against plain loops over the rows --------------------------------

def test_search_finds_what_a_loop_over_the_products_finds(sites):
    rows = [dict(row) for row in sites.db.execute("SELECT * FROM product")]
    wanted = sorted((row["price"], row["name"]) for row in rows if "wool" in row["name"].lower()
                    and row["category"] == "Clothing" and row["price"] <= 2000)
    page = sites.request("GET", f"{SHOP}/search?q=WOOL&category=Clothing&high=20&sort=price")
    shown = re.findall(r'<a href="/product/\d+">(.*?)</a><br>\$([\d.]+)', page.html)
    assert [(round(100 * float(price)), name) for name, price in shown] == wanted != []


def test_pages_of_a_list_hold_every_row_once(sites):
    ids = []
    for n in range(1, 30):
        found = re.findall(r"/admin/order/(\d+)", sites.request(
            "GET", f"{ADMIN}/admin/orders?status=Complete&page={n}").html)
        ids += found
        assert len(found) == 20 or n > 1
    assert sorted(map(int, ids)) == column(sites, "SELECT id FROM sale WHERE status = 'Complete' "
                                                  "ORDER BY id")


def test_bestsellers_and_sales_by_month_are_sums_over_the_lines(sites):
    sold, takings = Counter(), Counter()
    for name, day, quantity, price in sites.db.execute(
            "SELECT product.name, day, quantity, sale_line.price FROM sale_line, sale, product "
            "WHERE sale.id = sale_id AND product.id = product_id AND status <> 'Canceled'"):
        if "2022-03-01" <= day <= "2022-06-30":
            sold[name] += quantity
        takings[day[:7]] += quantity * price
    for day, postage in sites.db.execute("SELECT day, postage FROM sale "
                                         "WHERE status <> 'Canceled'"):
        takings[day[:7]] += postage
    page = sites.request("GET", f"{ADMIN}/admin/reports/bestsellers?from=2022-03-01&to=2022-06-30")
    shown = re.findall(r"<tr><td>([^<]+)</td><td>(\d+)</td>", page.html)
    assert shown == [(escape(name), str(count)) for name, count
                     in sorted(sold.items(), key=lambda pair: (-pair[1], pair[0]))[:20]]
    page = sites.request("GET", f"{ADMIN}/admin/reports/sales")
    assert [(month, round(100 * float(total.replace(",", "")))) for month, total in re.findall(
        r"<td>(\d{4}-\d\d)</td>.*?\$([\d,.]+)</td>", page.html)] == sorted(takings.items())


def test_a_way_is_measured_along_the_streets(sites):
    a, b = [dict(row) for row in sites.db.execute("SELECT * FROM place WHERE id IN (4, 9)")]
    metres = (abs(a["x"] - b["x"]) + abs(a["y"] - b["y"])) * 120 // 100     # by car: a fifth more
    hours, minutes = divmod(1 + metres // 700, 60)                          # 42 km an hour
    page = sites.request("GET", f"{MAP}/directions?" + urlencode(
        {"from": a["name"], "to": b["name"], "mode": "car"}))
    assert f"<strong>{metres / 1000:.1f}km</strong>" in page.html
    assert f"<strong>{hours}:{minutes:02}</strong>" in page.html


def test_an_order_takes_what_is_in_the_cart(sites):
    product = sites.db.execute("SELECT * FROM product WHERE stock > 5 AND option_name = 'Size'"
                               ).fetchone()
    option = product["option_values"].split(", ")[1]
    assert sites.request("POST", f"{SHOP}/cart/add", [
        ("product", str(product["id"])), ("quantity", "1"), ("option", "Huge")]).status == 404
    for quantity, in_cart in ((2, 2), (1, 3)):
        page = sites.request("POST", f"{SHOP}/cart/add", [
            ("product", str(product["id"])), ("quantity", str(quantity)), ("option", option)])
        assert page.url == f"{SHOP}/cart" and f'name="quantity" value="{in_cart}"' in page.html
    form = [(name, "x") for name in ("name", "street", "city", "zip", "phone")]
    page = sites.request("POST", f"{SHOP}/checkout", [*form, ("shipping", "Express")])
    number = int(page.url.rpartition("/")[2])
    assert tuple(sites.db.execute("SELECT product_id, option, quantity, price FROM sale_line "
                                  "WHERE sale_id = ?", (number,)).fetchone()) == (
        product["id"], option, 3, product["price"])
    assert column(sites, "SELECT total FROM sale_total WHERE id = ?", number) == [
        3 * product["price"] + 1500]
    assert column(sites, "SELECT stock FROM product WHERE id = ?", product["id"]) == [
        product["stock"] - 3]
    assert sites.request("POST", f"{SHOP}/checkout", [*form, ("shipping", "Express")]).status == 404


def test_what_the_administration_changes_the_shop_shows(sites):
    key, product, title = next(sites.db.execute("SELECT id, product_id, body FROM review WHERE "
                                                "status = 'Pending'"))
    page = f"{SHOP}/product/{product}"
    assert title not in sites.request("GET", page).html
    sites.request("POST", f"{ADMIN}/admin/review/{key}", [("status", "Approved")])
    assert title in sites.request("GET", page).html
    change = [("name", "New <name>"), ("price", "$1234.5"), ("stock", "0"), ("description", "d")]
    sites.request("POST", f"{ADMIN}/admin/product/{product}", [*change, ("enabled", "1")])
    shown = sites.request("GET", page).html
    assert "New &lt;name&gt;" in shown and "$1,234.50" in shown and "Out of stock" in shown
    sites.request("POST", f"{ADMIN}/admin/product/{product}", change)
    assert sites.request("GET", page).status == 404


def test_a_vote_counts_once_and_can_be_taken_back(sites):
    name, score = next(sites.db.execute("SELECT forum, score FROM post WHERE id = 8"))
    for value, points in (("1", score + 1), ("-1", score - 1), ("-1", score)):
        page = sites.request("POST", f"{FORUM}/f/{name}/8/vote", [("value", value)])
        assert f"{points} points" in page.html


def test_issues_are_numbered_by_project_and_closed_and_opened(sites):
    last = column(sites, "SELECT max(number) FROM issue WHERE project_id = 2")[0]
    path = column(sites, "SELECT '/' || owner || '/' || name FROM project WHERE id = 2")[0]
    page = sites.request("POST", f"{CODE}{path}/issues", [
        ("title", "T"), ("body", ""), ("assignee", "ehorak"), ("label", "bug")])
    assert page.url == f"{CODE}{path}/issues/{last + 1}"
    for state in ("closed", "open"):
        assert f"<strong>{state}</strong>" in sites.request("POST", f"{page.url}/state", []).html
    assert sites.request("POST", f"{page.url}/assign", [("assignee", "nobody")]).status == 400


# ---- the server for a person --------------------------------------------------------------------

@pytest.fixture(scope="module")
def visited():
    server = web.server()
    with serving(server):
        yield server.server_port


@pytest.mark.parametrize("method, path, headers, status", [
    ("GET", "/", {}, 200), ("GET", "/onestopmarket.com/product/3", {}, 200),
    ("GET", "/onestopmarket.com/product/0", {}, 404), ("GET", "/example.org/", {}, 404),
    ("GET", "/../etc/passwd", {}, 404), ("GET", "/", {"Host": "evil.org"}, 403),
    ("POST", "/onestopmarket.com/account", {"Origin": "http://evil.org"}, 403),
    ("POST", "/onestopmarket.com/account", {"Origin": "null"}, 403),
    ("POST", "/onestopmarket.com/account", {"Origin": None}, 403),
    ("POST", "/onestopmarket.com/account", {}, 400),
    ("POST", "/onestopmarket.com/account", {"Content-Length": "999999"}, 413)])
def test_the_server_answers_a_persons_browser_alone(visited, method, path, headers, status):
    ours = {"Origin": f"http://127.0.0.1:{visited}"}
    connection = HTTPConnection("127.0.0.1", visited, timeout=10)
    connection.request(method, path, headers={
        name: value for name, value in {**ours, **headers}.items() if value})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == status
    assert 'href="http' not in body and not re.search('(href|action)="/(?!luma|[a-z]+[.])', body)


def test_a_form_sent_to_the_server_leads_on_to_the_page(visited):
    ours = f"http://127.0.0.1:{visited}"
    page = requests.post(f"{ours}/reddit.com/edit_biography", {"bio": "Grüße & more"},
                         headers={"Origin": ours}, timeout=10)
    assert [first.status_code for first in page.history] == [303]
    assert page.url == f"{ours}/reddit.com/user/nora_w" and "Grüße &amp; more" in page.text
