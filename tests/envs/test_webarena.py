"""pytest tests/envs/test_webarena.py: grammar, both browsers, evaluators, tasks and their expert.

The slow ones need Debian's Chromium and playwright, and skip themselves without."""
import os
import random
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from players import children, play, wire
from test_webarena_sites import crawl

from envs import open_env, webarena
from envs.web import browser as text_browser
from envs.web import chromium, tasks
from envs.web.browser import Browser, parsed
from envs.web.sites import SITES, Sites

SHOP = "http://onestopmarket.com"


@pytest.fixture
def chrome():
    """Chromium in place of the text browser."""
    try:
        chromium.started()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    return chromium.Chromium


# ---- actions ------------------------------------------------------------------------------------

@pytest.mark.parametrize("reply, action", [     # as create_id_based_action of WebArena reads them
    ("I need it. ```click [12]```", ("click", 12)), ("```click[12]```", ("click", 12)),
    ("```\nhover [3]\n```", ("hover", 3)),
    ("```type [4] [red mug]```", ("type", 4, "red mug", True)),
    ("```type [4] [red mug] [0]```", ("type", 4, "red mug", False)),
    ("```type [4] [a] b [1]```", "Invalid type action type [4] [a] b [1]"),
    ("```type [4] [a [b] c] [1]```", ("type", 4, "a [b] c", True)),
    ("```press [Ctrl+a]```", ("press", "Ctrl+a")), ("```scroll [down]```", ("scroll", "down")),
    ("```scroll up```", ("scroll", "up")), ("```goto [http://a.b/c]```", ("goto", "http://a.b/c")),
    *((f"```{verb}```", (verb,)) for verb in ("new_tab", "close_tab", "go_back", "go_forward")),
    ("```tab_focus [0]```", ("tab_focus", 0)), ("```stop [$3.00]```", ("stop", "$3.00")),
    ("```stop```", ("stop", "")), ("```stop []```", ("stop", "")),
    ("click [12]", webarena.UNPARSED), ("", webarena.UNPARSED),
    ("```click [12]``` ```click [12]```", webarena.SEVERAL),
    ("```click 12```", "Invalid click action click 12"),
    ("```type [4] red mug```", "Invalid type action type [4] red mug [1]"),
    ("```scroll [left]```", "Invalid scroll action scroll [left]"),
    ("```buy [mug]```", "Invalid action buy [mug]"), ("``````", "Invalid action ")])
def test_read_action_takes_what_the_original_takes(reply, action):
    if isinstance(action, tuple):
        assert webarena.read_action(reply) == action
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(action)}$"):
            webarena.read_action(reply)


@pytest.mark.parametrize("action, told", [      # as WebArena's action2str writes them
    (("click", 34), "click [34] where [34] is link 'Blue mug'"),
    (("type", 34, "mug", True), "type [34] [mug ] where [34] is link 'Blue mug'"),
    (("type", 34, "mug", False), "type [34] [mug] where [34] is link 'Blue mug'"),
    (("tab_focus", 1), "page_focus [1]"), (("go_back",), "go_back"), (("stop", ""), "stop []")])
def test_told_writes_the_previous_action(action, told):
    assert webarena.told(action, "link 'Blue mug'") == told


# ---- a browser on small pages -------------------------------------------------------------------

SMALL = """<!DOCTYPE html><title>One &amp; two</title><body><header><nav><ul><li><a href="/me">My
Account</a></ul></nav></header><main><h1>Results for: 'mug'</h1>
<form action="/search"><label for="q">Search</label> <input id="q" name="q" required> <button>Go
</button></form><form action="/add?x=1" method="post"><label>Size <select name="size"><option>S
<option value="m" selected>Medium</select></label><label><input type="checkbox" name="gift"> Gift
</label><label><input type="radio" name="way" value="a" checked> Air</label><label><input
type="radio" name="way" value="b"> Boat</label><textarea name="t" aria-label="Note">
two
lines</textarea><input type="hidden" name="h" value="7"><button name="b" value="1">Add</button>
<button name="b" value="2">Later</button></form>
<table><tr><th>Order</th><th>Total</th></tr><tr><td><a href="/o/1">#1</a></td><td>$3 <em>paid</em>
</td></tr></table><p>Only <strong>$3</strong> each. &lt;b&gt;</p><img src="x" alt="A mug"></main>"""
TREE = """Tab 0 (current): One & two

[ ] RootWebArea 'One & two' focused: True
	[ ] link 'My Account'
	[ ] main ''
		[ ] heading "Results for: 'mug'"
		[ ] form ''
			[ ] StaticText 'Search'
			[ ] textbox 'Search' required: True
			[ ] button 'Go'
		[ ] form ''
			[ ] StaticText 'Size'
			[ ] combobox 'Size' hasPopup: menu expanded: False
				[ ] option 'S' selected: False
				[ ] option 'Medium' selected: True
			[ ] checkbox 'Gift' checked: false
			[ ] radio 'Air' checked: true
			[ ] radio 'Boat' checked: false
			[ ] textbox 'Note' required: False
				[ ] StaticText 'two lines'
			[ ] button 'Add'
			[ ] button 'Later'
		[ ] table ''
			[ ] row ''
				[ ] columnheader 'Order'
				[ ] columnheader 'Total'
			[ ] row ''
				[ ] cell '#1'
					[ ] link '#1'
				[ ] cell '$3 paid'
		[ ] StaticText 'Only'
		[ ] StaticText 'each. <b>'
		[ ] image 'A mug'"""      # '$3' is left out: a line close before it has it


class Site:
    """Answers every request with one page, and remembers them."""

    def __init__(self, page=SMALL):
        self.page, self.asked = page, []

    def __call__(self, method, url, form):
        self.asked.append((method, url, form))
        if "evil" in url:
            raise PermissionError(f"{url} is none of the sites")
        return SimpleNamespace(status=200, html=self.page, url=url if method == "GET" else
                               f"{SHOP}/done")


def opened(kind=Browser, page=SMALL):
    site = Site(page)
    browser = kind(site)
    assert browser.act(("goto", f"{SHOP}/start")) is None
    browser.observation()
    return browser, site


def number(browser, line):
    return next(n for n, node in browser.seen.items() if node.text.startswith(line))


def shape(observation):
    return re.sub(r"\[\d+\]", "[ ]", observation)


def use_all(browser):
    """Fill in the second form and send it."""
    for verb, line, *rest in (
            ("type", "combobox 'Size'", "S", True), ("click", "option 'Medium'"),
            ("click", "checkbox 'Gift'"), ("click", "radio 'Boat'"),
            ("type", "textbox 'Note'", " more", False), ("click", "button 'Later'")):
        assert browser.act((verb, number(browser, line), *rest)) is None
        browser.observation()


SENT = [("size", "m"), ("gift", "on"), ("way", "b"), ("t", "two\nlines more"), ("h", "7"),
        ("b", "2")]


def test_browser_shows_the_tree_of_chromium():
    browser, _ = opened()
    assert shape(browser.observation()) == TREE


def test_browser_sends_forms_as_a_browser_does():
    browser, site = opened()
    use_all(browser)
    assert site.asked[-1] == ("POST", f"{SHOP}/add?x=1", SENT) and browser.url == f"{SHOP}/done"
    browser.act(("click", number(browser, "button 'Go'")))      # a required field is empty
    assert len(site.asked) == 2 and "focused: True" in browser.observation().split("Go")[0]
    browser.act(("type", number(browser, "textbox 'Search'"), "a&b", True))
    assert site.asked[-1] == ("GET", f"{SHOP}/search?q=a%26b", None)
    assert browser.url == f"{SHOP}/search?q=a%26b"


def test_browser_keeps_ids_and_what_was_typed_until_the_page_changes():
    browser, _ = opened()
    before, field = dict(browser.seen), number(browser, "textbox 'Search'")
    browser.act(("type", field, "ab", False))
    browser.act(("type", field, "c", False))
    assert "StaticText 'abc'" in browser.observation()
    assert {n for n in before if n in browser.seen} == {*before}
    for keys, value in (("Backspace", "ab"), ("d", "abd"), ("Ctrl+a", "abd"), ("e", "e"),
                        ("Ctrl+a", "e"), ("Delete", ""), ("F5", "")):
        browser.act(("press", keys))
        assert text_browser.value_of(browser.document().get_element_by_id("q")) == value
    browser.act(("goto", f"{SHOP}/else"))
    assert text_browser.value_of(browser.document().get_element_by_id("q")) == ""


def test_browser_goes_back_and_forward_in_each_tab():
    browser, site = opened()
    browser.act(("click", number(browser, "link 'My Account'")))
    browser.act(("new_tab",))
    assert browser.observation().startswith("Tab 0: One & two | Tab 1 (current): \n\n[1] RootWeb")
    browser.act(("goto", f"{SHOP}/x"))
    for action, url in (("go_back", "about:blank"), ("go_forward", f"{SHOP}/x"),
                        ("go_forward", f"{SHOP}/x"), ("close_tab", f"{SHOP}/me"),
                        ("go_back", f"{SHOP}/start"), ("close_tab", "about:blank")):
        assert browser.act((action,)) is None and browser.url == url
    assert len(browser.tabs) == 1 and "no tab 1" in browser.act(("tab_focus", 1))
    for _ in range(2 * text_browser.MOST_TABS):
        problem = browser.act(("new_tab",))
    assert len(browser.tabs) == text_browser.MOST_TABS and "close one" in problem


def test_browser_shows_a_window_that_scrolls(monkeypatch):
    """Lines 0 to 99: windows of 40, the last one full."""
    rows = "".join(f"<p>line {n} of it</p>" for n in range(99))
    browser, _ = opened(page=f"<title>T</title><body><article>{rows}</article>")
    monkeypatch.setattr(text_browser, "WINDOW", 40)

    def numbers():
        return [int(n) for n in re.findall(r"line (\d+)", browser.observation())]
    seen = [numbers()]
    for way in ("down", "down", "down", "up", "up", "up"):
        browser.act(("scroll", way))
        seen.append(numbers())
        assert len(re.findall("RootWebArea|article", browser.observation())) == 2   # always seen
    assert [page[0] for page in seen] == [0, 38, 59, 59, 19, 0, 0]
    assert [page[-1] for page in seen] == [37, 77, 98, 98, 58, 37, 37]


@pytest.mark.parametrize("action", ["click [9999]", *(f"goto [{address}]" for address in (
    "file:///etc/passwd", "chrome://version", "about:blank", "http://evil.org/", "http://[",
    "//evil.org/", "http://onestopmarket.com:99999999999/", "localhost", " "))])
def test_an_action_that_cannot_be_done_is_told_and_changes_nothing(action):
    """An id that is not there; an address that is none of the sites'."""
    env = webarena.Env()
    env.reset(webarena.TEST[0])
    before, url = env.browser.observation(), env.browser.url
    observation, reward, done, info = env.step(f"```{action}```")
    assert (reward, done, info["valid"]) == (0, False, False)
    assert env.browser.url == url and before in observation
    told = observation.partition("PREVIOUS ACTION: ")[2]
    assert told != "None" and (action != "click [9999]" or told == (
        'Attempt to perfom "click" on element "[9999]" but no matching element found. Please check '
        "the observation more carefully."))
    assert env.step("click [1]")[0] == webarena.UNPARSED        # and the page is still there
    assert before in env.step("```scroll [up]```")[0]


# ---- evaluators: configs in the form of WebArena's own ------------------------------------------

@pytest.mark.parametrize("wanted, answer, good", [
    (dict(exact_match="Blue Mug"), "'blue mug'", True), (dict(exact_match="mug"), "a mug", False),
    (dict(must_include=["2", "red"]), "12 RED ones", True),     # of several each may lie anywhere
    (dict(must_include=["2"]), "12", False), (dict(must_include=["2"]), "it is 2.", True),
    (dict(must_include=["12"]), "312", True), (dict(must_include=["a", "b"]), "a", False),
    (dict(fuzzy_match="N/A"), "n/a", True), (dict(fuzzy_match="N/A"), "N/A, I think", False),
    (dict(fuzzy_match=["5 min", "walk"]), "a walk of 5 min", True),
    (dict(exact_match="a", must_include=["b"]), "a", False)])
def test_string_match(wanted, answer, good):
    assert webarena.string_match(dict(reference_answers=wanted), answer) is good


@pytest.mark.parametrize("reference, url, good", [
    ("http://a.com/x", "http://a.com/x/", True), ("http://a.com/x", "http://a.com/x/y?z=1", True),
    ("http://a.com/x", "http://b.com/x", False),
    ("http://a.com/x?k=1", "http://a.com/x?j=2&k=1", True),
    ("http://a.com/x?k=1", "http://a.com/x", False),
    ("http://a.com/x?k=1", "http://a.com/x?k=2", False),
    ("http://a.com/x |OR| http://a.com/y", "http://a.com/y", True),
    ("http://a.com/x?k=1 |OR| http://a.com/y?k=2", "http://a.com/x?k=2", True)])    # as there
def test_url_match(reference, url, good):
    assert webarena.url_match(dict(reference_url=reference), url) is good


@pytest.mark.parametrize("locator, required, good", [
    ("", dict(must_include=["results for", "$3"]), True), ("", dict(must_include=["$4"]), False),
    ("", dict(must_include=["$4 |OR| $3", "order"]), True),
    ("document.querySelector('#q').value", dict(exact_match=""), True),
    ("document.querySelector(\"[name='h']\").value", dict(exact_match="7"), True),
    ("document.querySelector('select').value", dict(exact_match="m"), True),
    ("document.querySelector('textarea').value", dict(exact_match="two\nlines"), True),
    ("document.querySelector('h1').outerText", dict(exact_match="results for: 'mug'"), True),
    ("document.querySelector('table').outerText", dict(must_include=["$3 paid"]), True),
    ("document.querySelector('.none').outerText", dict(exact_match=""), True),
    ("document.querySelector('img').outerHTML", dict(must_include=['alt="a mug"']), True)])
def test_program_html(locator, required, good):
    wanted = dict(program_html=[dict(url="last", locator=locator, required_contents=required)])
    assert webarena.program_html(wanted, lambda url: parsed(SMALL)) is good


def test_program_html_opens_an_address_and_all_targets_count():
    asked = []
    target = dict(url=f"{SHOP}/a", locator="", required_contents=dict(must_include=["mug"]))
    wanted = dict(program_html=[target, target | dict(url=f"{SHOP}/b", required_contents=dict(
        exact_match="mug"))])
    assert not webarena.program_html(wanted, lambda url: asked.append(url) or parsed("mug"))
    assert asked == [f"{SHOP}/a", f"{SHOP}/b"]
    with pytest.raises(ValueError, match="unknown locator"):
        webarena.located(parsed(SMALL), "window.location")


# ---- the environment ----------------------------------------------------------------------------

def one_of_each(split):
    """The first task of every template."""
    return {tasks.TEMPLATES[i % webarena.KINDS][1].__name__: i for i in split[::-1]}.values()


def test_configs_have_the_form_of_the_original():
    env, kinds = webarena.Env(), set()
    for task_id in one_of_each(webarena.TRAIN):
        env.reset(task_id)
        config, wanted = env.config, env.config["eval"]
        assert config.keys() == {"sites", "task_id", "start_url", "require_login", "storage_state",
                                 "geolocation", "require_reset", "eval", "intent_template",
                                 "instantiation_dict", "intent"}
        assert config["sites"] == [webarena.family(task_id)] and "{{" not in config["intent"]
        assert wanted.keys() >= {"eval_types", "reference_answers", "reference_url", "program_html"}
        kinds.add(tuple(wanted["eval_types"]))
    assert kinds == {("string_match",), ("url_match",), ("program_html",),
                     ("url_match", "program_html")}


def test_no_task_is_solved_by_stopping_and_every_answer_can_be_read():
    """A must_include stands in what the expert saw before it said so."""
    env = webarena.Env()
    for task_id in one_of_each(webarena.TEST):
        for answer in ("", "done", "N/A"):
            seen, wanted = env.reset(task_id), env.config["eval"]["reference_answers"]
            score = env.step(f"```stop [{answer}]```")[1]
            assert score == (answer == "N/A" and wanted == dict(fuzzy_match="N/A")), env.object
        turns = play(env, task_id, 15)
        assert turns[-1][-1]["success"], env.object
        seen += "".join(observation.partition("OBJECTIVE")[0] for _, observation, *_ in turns[:-1])
        assert all(phrase in seen for phrase in (wanted or {}).get("must_include", ())), env.object


def number_in(text):
    return float(re.sub("[^0-9.]", "", text))


@pytest.mark.parametrize("name, page, answer", [    # from a page's table, read without the database
    ("order_total", "http://onestopmarket.com/orders", lambda rows, s: [
        row[3].strip("$") for row in rows if int(row[0]) == s["number"]]),
    ("bestseller", "http://luma.com/admin/reports/bestsellers?from={since}&to={until}",
     lambda rows, s: [max(rows, key=lambda row: int(row[1]))[0]]),
    ("order_count", "http://luma.com/admin/orders?customer={customer}", lambda rows, s: [
        str(sum(row[2] == s["customer"] and row[5] == s["status"] for row in rows))]),
    ("top_terms", "http://luma.com/admin/reports/searches", lambda rows, s: [
        row[0] for row in sorted(rows, key=lambda row: -int(row[2]))[:s["n"]]]),
    ("customer_detail", "http://luma.com/admin/customers?q={name}", lambda rows, s: [
        row["email phone - city".split().index(s["what"]) + 1] for row in rows]),
    ("commits", "http://gitlab.com/{owner}/{project}/contributors", lambda rows, s: [
        row[2] for row in rows if row[1] == s["author"]]),
    ("nearest", "http://openstreetmap.org/nearby?of={place}&kind={kind}", lambda rows, s: [
        min(rows, key=lambda row: number_in(row[2]) * (1 if "km" in row[2] else 1e-3))[0]])])
def test_gold_answers_are_those_of_the_pages(name, page, answer):
    found = [i for i in webarena.TRAIN if tasks.TEMPLATES[i % webarena.KINDS][1].__name__ == name]
    for task_id in found[:6]:
        web, task = tasks.task_of(task_id, task_id % webarena.KINDS, False)
        slots = dict(task.config["instantiation_dict"])
        if "project" in slots:
            slots["owner"], = web.db.execute("SELECT owner FROM project WHERE name = ?",
                                             [slots["project"]]).fetchone()
        document = parsed(web.request("GET", page.format(**slots).replace(" ", "+")).html)
        rows = [[" ".join(cell.text_content().split()) for cell in row.findall("td")]
                for row in document.iter("tr") if row.find("td") is not None]
        assert task.eval["reference_answers"] == dict(must_include=answer(rows, slots)), slots


def test_expert_succeeds_from_wherever_it_stands():
    env, rng = webarena.Env(), random.Random(0)
    for task_id in one_of_each(webarena.TEST):
        env.reset(task_id)
        for _ in range(6):
            links = [n for n, node in env.browser.seen.items() if node.text.startswith("link")]
            env.step(rng.choice((
                f"```click [{rng.choice(links)}]```" if links else "```go_back```", "```new_tab```",
                "```scroll [down]```", "```go_back```", "```goto [http://homepage.com]```",
                "```tab_focus [0]```", "```close_tab```")))
        assert play(env, most=25)[-1][-1]["success"], (task_id, env.object)


def test_wire_tells_sites_objective_and_nodes():
    ask = wire("webarena")
    ask("/create", {})
    begun = ask("/reset", {"env_idx": 0, "seed": 0, "idx": webarena.TEST[0]})
    assert begun["sites"] == ["shopping"]
    assert begun["observation"].endswith(f"OBJECTIVE: {begun['object']}\nPREVIOUS ACTION: None")
    nodes = ask("/observation_metadata?env_idx=0")["obs_nodes_info"]
    assert nodes["1"]["text"].startswith("[1] RootWebArea")


def test_use_takes_chromium_alone():
    with pytest.raises(ValueError, match="webarena takes chromium, or no data"):
        webarena.use("firefox")


# ---- Chromium -----------------------------------------------------------------------------------

@pytest.mark.slow
def test_chromium_shows_the_same_tree_and_sends_the_same_forms(chrome):
    browser, site = opened(chrome)
    assert shape(browser.observation()) == TREE
    use_all(browser)
    site.asked = [ask for ask in site.asked if "GET" not in ask]
    assert site.asked == [("POST", f"{SHOP}/add?x=1", SENT)] and browser.url == f"{SHOP}/done"
    field = number(browser, "textbox 'Search'")
    browser.act(("type", field, "a", False))
    browser.act(("press", "Ctrl+a"))
    browser.act(("press", "Backspace"))
    browser.act(("type", field, "b", False))
    assert text_browser.value_of(browser.document().get_element_by_id("q")) == "b"
    for address in ("file:///etc/passwd", "http://evil.org/", "http://127.0.0.1:1/evil", "data:,x"):
        assert browser.act(("goto", address)) and browser.url == f"{SHOP}/done"
    browser.close()


def kinds_of_pages(sites):
    """One address of each route of the sites that links lead to, and others of some."""
    found = {}
    for address in crawl(sites, 1):
        at = urlsplit(address)
        routes = (route for _, route, _ in SITES[at.netloc].ROUTES)
        route = next(route for route in routes if re.fullmatch(route, at.path))
        found.setdefault((at.netloc, route), address)
    place, other = (name for name, in sites.db.execute("SELECT name FROM place LIMIT 2"))
    way = f"openstreetmap.org/directions?from={place}&to={other}&mode=foot".replace(" ", "+")
    return [*found.values(), *(f"http://{address}" for address in f"""{way} homepage.com/
onestopmarket.com/search?q=mug onestopmarket.com/product/4 onestopmarket.com/nothing
luma.com/admin/reports/sales luma.com/admin/reports/customers luma.com/admin/reports/searches
reddit.com/search?q=book openstreetmap.org/search?q=cafe""".split())]


@pytest.mark.slow
def test_every_kind_of_page_has_the_same_tree_in_chromium(chrome, monkeypatch):
    monkeypatch.setattr(text_browser, "WINDOW", 10**6)
    monkeypatch.setattr(chromium, "HEIGHT", 20_000)
    sites = Sites("trees")
    option, = sites.db.execute("SELECT option_values FROM product WHERE id = 4").fetchone()
    sites.request("POST", f"{SHOP}/cart/add", [("product", "4"), ("quantity", "2"),
                                               ("option", option.split(", ")[0])])
    sites.request("POST", f"{SHOP}/wishlist/add", [("product", "4")])
    ours, theirs = Browser(sites.request), chrome(sites.request)
    for address in kinds_of_pages(sites):
        assert ours.act(("goto", address)) is theirs.act(("goto", address)) is None
        assert shape(ours.observation()) == shape(theirs.observation()), address
    theirs.close()


@pytest.mark.slow
def test_a_task_of_each_family_is_played_alike_in_chromium(chrome):
    """Its windows, and so the expert's turns, may be others; the outcome is not."""
    world = open_env("webarena", "chromium")
    for name in ("buy", "set_price", "comment", "new_issue", "distance"):
        task_id = next(i for i in webarena.TEST
                       if tasks.TEMPLATES[i % webarena.KINDS][1].__name__ == name)
        env = world.Env()
        assert play(env, task_id, 20)[-1][-1]["success"], name
        env.close()


@pytest.mark.slow
def test_a_killed_chromium_is_an_outage(chrome):
    ask = wire("webarena", "chromium")
    ask("/create", {})
    ask("/reset", {"env_idx": 0, "seed": 0, "idx": webarena.TEST[0]})
    for pid in children(os.getpid()):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"--type=" not in line and b"chromium" in line and b"node" not in line:
            os.kill(pid, signal.SIGKILL)
    lost = ask("/step", {"env_idx": 0, "action": "```scroll [down]```"}, 500)
    assert "reward" not in lost and "error" in lost
    begun = ask("/reset", {"env_idx": 0, "seed": 0, "idx": webarena.TEST[0]})    # another one
    assert "OBJECTIVE" in begun["observation"]
    ask("/close", {"env_idx": 0})
