"""Five small web sites over one SQLite database for each episode: what webarena is played on.

    sites = Sites(seed=7)
    page = sites.request("GET", "http://onestopmarket.com/search?q=mug")
    page.status, page.url, page.html                        # 200, the same address, "<!DOCTYPE ..."
    page = sites.request("POST", "http://onestopmarket.com/cart/add", [("product", "3"), ...])
    page.url                                                # http://onestopmarket.com/cart: a 303

`request` opens no socket or file: an address is looked up in a table. The sites have the host
names of WebArena's (arXiv:2307.13854), pages and content of their own. The content is made once a
process, in 20 ms; an episode copies the database and changes it by its seed (VARY of each site):
prices, stock, votes, states, the places of a map, and how many of some rows there are. That costs
an episode 1.4 ms and 540 kB, to which its forms can add 512 kB; a page takes 0.3 ms. `serve` shows
the sites to a person.
"""
import functools
import random
import re
import sqlite3
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

from envs.web import admin, code, forum, maps, shop
from envs.web.pages import Ask, Html, Problem, bullets, html, link

SITES = {"onestopmarket.com": shop, "luma.com": admin, "reddit.com": forum, "gitlab.com": code,
         "openstreetmap.org": maps}
HOME = "homepage.com"
HOSTS = (*SITES, HOME)
GROWTH = 128            # pages of 4 kB by which an episode's database may grow
LONGEST_FORM, LONGEST_URL = 20_000, 8000        # letters
ERRORS = {400: "Please check your entries", 404: "Page not found", 413: "Too large",
          507: "Storage full"}
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")      # what no text may hold
STYLE = Html("""
body{font:15px/1.45 system-ui,sans-serif;margin:0;color:#222;background:#f6f6f4}
header{background:COLOUR;padding:.7rem 1.5rem}
header a{color:#fff;margin-right:1rem} header a.brand{font-weight:bold;font-size:1.2rem}
header form{display:inline} main{max-width:60rem;margin:1rem auto;padding:.5rem 1.5rem 2rem;
background:#fff;border:1px solid #ddd;border-radius:6px} a{color:#1558a8} a:focus,button:focus,
input:focus,select:focus,textarea:focus{outline:3px solid #f2a900}
table{border-collapse:collapse;width:100%;margin:.6rem 0} th,td{text-align:left;padding:.35rem
.6rem;border-bottom:1px solid #e3e3e3;vertical-align:top} th{background:#f0f0ee}
form{margin:.6rem 0} form label{display:block;margin:.4rem 0} form.inline,form.inline label,td form
{display:inline;margin:0 .5rem 0 0} header label{color:#fff}
header button{border:1px solid #fff} textarea{width:100%;display:block}
button{background:COLOUR;color:#fff;border:0;border-radius:4px;padding:.35rem .8rem;cursor:pointer}
ul.row{list-style:none;padding:0} ul.row li{display:inline-block;margin-right:1rem}
ul.cards{list-style:none;padding:0;display:grid;grid-template-columns:repeat(3,1fr);gap:1rem}
ul.cards li{border:1px solid #e3e3e3;border-radius:6px;padding:.8rem} .small{color:#666}
blockquote{margin:.6rem 0 .6rem 0;padding-left:1rem;border-left:3px solid #ddd}
""")


@dataclass
class Page:
    status: int
    url: str            # where the redirects ended
    html: str


class Sites:
    """The sites of one episode: nobody else sees what is written here."""

    def __init__(self, seed):
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        world().backup(self.db)
        self.db.row_factory = sqlite3.Row
        pages = self.db.execute("PRAGMA page_count").fetchone()[0]
        self.db.execute(f"PRAGMA max_page_count = {pages + GROWTH}")
        # a different row for each a, b: (id * a + b) mod a prime is as good as a random number
        rng = random.Random(f"webarena {seed}")
        for site in SITES.values():
            for statement in site.VARY:
                self.db.execute(statement.replace("LUCK", f"((id * {rng.randrange(9999, 65521)} + "
                                                  f"{rng.randrange(65521)}) % 65521)"))
        self.db.commit()

    def close(self):
        self.db.close()

    def request(self, method, url, form=None):
        """Get or post; -> Page, after at most five redirects. form: [(name, value)] or None.

        PermissionError: the address, or one that it redirects to, is not of the sites. A mistake
        of the user's (an unknown page, a field left empty) is a page with a status of 400 or more.
        """
        for _ in range(5):
            host, parts = locate(clean(url))
            status, result = self.answer(method, host, parts, form or [])
            if isinstance(result, Html):
                return Page(status, parts.geturl(), str(result))
            method, url, form = "GET", urljoin(url, result), None
        raise PermissionError(f"{url}: more than five redirects")

    def answer(self, method, host, parts, form):
        """(status, a whole page) or (303, the address to go on to)."""
        site = SITES.get(host)
        query = parse_qsl(parts.query[:LONGEST_URL], keep_blank_values=True)
        ask = Ask(self.db, clean(unquote(parts.path)) or "/", texts(query), texts(form))
        status = 200
        try:
            if sum(len(name) + len(value) + 1 for name, value in form) > LONGEST_FORM:
                raise Problem(413, f"A form may have at most {LONGEST_FORM:,} letters.")
            if len(parts.path) + len(parts.query) > LONGEST_URL:
                raise Problem(413, f"An address may have at most {LONGEST_URL:,} letters.")
            result = home() if host == HOME else self.call(site, method, ask)
        except Problem as problem:
            status, sentence = problem.args
            result = ERRORS[status], html("<p>{}</p>", sentence)
        if isinstance(result, str):
            return 303, result
        return status, framed(site, ask, *result)

    def call(self, site, method, ask):
        """The page function's result. What a failed one has written is taken back."""
        for verb, pattern, function in site.ROUTES:
            found = verb == method and re.fullmatch(pattern, ask.path, re.ASCII)
            if found:
                try:
                    with self.db:
                        return function(ask, *found.groups())
                except sqlite3.OperationalError as error:
                    if "full" not in str(error):
                        raise
                    raise Problem(507, "The storage of this site is full; nothing was saved."
                                  ) from None
        raise Problem(404, "The page you requested was not found.")


def locate(url):
    """(host, the address's parts). PermissionError: it is not an address of the sites."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "http" or parts.netloc.lower() not in HOSTS:
        raise PermissionError(f"{url[:200]!r} cannot be reached; there are only "
                              + ", ".join(f"http://{host}" for host in HOSTS))
    return parts.netloc.lower(), parts


def clean(text):
    return CONTROL.sub("", text)


def texts(pairs):
    """[(name, value)] of a query or form as a dict of clean text."""
    return {clean(name): clean(value) for name, value in pairs}


def framed(site, ask, title, body):
    """The whole page: a head, the site's bar of links, the body."""
    name, colour = (site.NAME, site.COLOUR) if site else ("Homepage", "#444")
    bar = site.bar(ask) if site else ""
    return html('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
                '<style>{style}</style></head><body><header><a class="brand" href="/">{name}</a>'
                '{bar}</header><main><h1>{title}</h1>{body}</main></body></html>', title=title,
                style=Html(STYLE.replace("COLOUR", colour)), name=name, bar=bar, body=body)


def home():
    return "Homepage", html("<p>{}</p>{}", "These sites can be visited:", bullets(
        html("{}: {}", link(f"http://{host}/", site.NAME), site.ABOUT)
        for host, site in SITES.items()))


@functools.cache
def world():
    """The database of all sites before an episode, the same in every process. It is only copied:
    `backup` costs an episode a third less memory than `deserialize`."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    for site in SITES.values():
        db.executescript(site.SCHEMA)
        site.fill(db, random.Random(f"webarena {site.NAME}"))
    db.commit()
    return db


# ---- for a person's own browser -----------------------------------------------------------------

def server(port=0):
    """An HTTP server of one episode on 127.0.0.1: /onestopmarket.com/cart is the shop's /cart.
    Another host name in the request, or a form that another site's page sends, is refused."""
    sites, lock = Sites("a visitor"), threading.Lock()

    class Visit(BaseHTTPRequestHandler):
        timeout = 60

        def do_GET(self, form=None):
            host = self.headers.get("Host")
            if host not in (f"127.0.0.1:{self.server.server_port}",
                            f"localhost:{self.server.server_port}") \
                    or form is not None and self.headers.get("Origin") != f"http://{host}":
                return self.send_error(403, "Forbidden", "This server answers its own pages only.")
            try:
                with lock:
                    page = sites.request("GET" if form is None else "POST",
                                         "http:/" + (self.path if self.path != "/" else
                                                     f"/{HOME}/"), form)
            except PermissionError as error:
                return self.send_error(404, "Not Found", str(error))
            if form is not None and page.status == 200:     # a reload must not send it again
                self.send_response(303)
                self.send_header("Location", page.url.removeprefix("http:/"))
            else:
                self.send_response(page.status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", "default-src 'none'; style-src "
                             "'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
            self.end_headers()
            at = urlsplit(page.url).netloc      # links: /cart, or to another site with its name
            self.wfile.write(re.sub('(href|action)="(http:/)?(?=/)', lambda link: f'{link[1]}="' + (
                "" if link[2] else f"/{at}"), page.html).encode())

        def do_POST(self):
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > 12 * LONGEST_FORM:
                return self.send_error(413)
            self.do_GET(parse_qsl(self.rfile.read(int(length)).decode("utf-8", "replace"),
                                  keep_blank_values=True))

    return ThreadingHTTPServer(("127.0.0.1", port), Visit)


def serve(port=0):
    """Serve the sites to a person until Ctrl-C."""
    with server(port) as visited:
        print(f"The sites: http://127.0.0.1:{visited.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            visited.serve_forever()
        except KeyboardInterrupt:
            pass
