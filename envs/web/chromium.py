"""The browser of envs/web/browser.py once more, played by Chromium: `--data chromium`.

It needs the package playwright and a Chromium, Debian's for example (apt install chromium). Every
request of its pages is answered by the same function as the text browser's; nothing opens a socket,
no script runs. One thread of a process drives one Chromium; a session is a context of it, as if
each had a profile of its own. The window has WebArena's 1280 x 720 pixels, the tree is filtered as
WebArena does, and options of a select are shown and can be clicked as in the text browser.

A Chromium that died is an outage: RuntimeError until the next reset, which starts another.
"""
import contextlib
import queue
import shutil
import threading
import time
from concurrent.futures import Future
from html import escape
from importlib.util import find_spec
from urllib.parse import parse_qsl

from envs.web.browser import (DROPPED, FIELDS, MOST_LETTERS, MOST_TABS, Node, address, parsed,
                              plain, repeated, with_element, written)

WIDTH, HEIGHT = 1280, 720
SECONDS = 20            # an action that takes longer is an outage
PATHS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",    # as root, in a container
         "--host-resolver-rules=MAP * ~NOTFOUND")                       # and no name leads anywhere
SHOWN = {"focused", "disabled", "checked", "hasPopup", "expanded", "selected"}  # properties
UNSEEN = {"none", "InlineTextBox", "ListMarker", "LineBreak", "MenuListPopup"}   # Chromium's own
KEYS = {"ctrl": "Control", "control": "Control", "meta": "Control", "alt": "Alt", "shift": "Shift",
        "enter": "Enter", "return": "Enter", "tab": "Tab", "backspace": "Backspace", "esc":
        "Escape", "escape": "Escape", "delete": "Delete", "space": "Space", "pagedown": "PageDown",
        "pageup": "PageUp", "home": "Home", "end": "End", "arrowdown": "ArrowDown", "arrowup":
        "ArrowUp", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight"}
MISSING = "--data chromium needs the package playwright and Debian's Chromium: pip install " \
    "playwright, apt install chromium; without it webarena plays in its own text browser"
KEEP = """() => { for (const x of document.querySelectorAll("input, textarea, option")) {
    if (x.tagName == "TEXTAREA") { if (x.textContent != x.value) x.textContent = x.value }
    else if (x.tagName == "OPTION") x.toggleAttribute("selected", x.selected)
    else if (["checkbox", "radio"].includes(x.type)) x.toggleAttribute("checked", x.checked)
    else x.setAttribute("value", x.value) } }"""        # what was typed, written into the page
lock, driver = threading.Lock(), None       # the process's Driver


class Driver:
    """One Chromium, and the thread that all of playwright's calls must come from. stuck: a call did
    not return."""

    def __init__(self, path):
        self.path, self.browser, self.stuck = path, None, False
        self.calls, ready = queue.SimpleQueue(), Future()
        threading.Thread(target=self.drive, args=(ready,), daemon=True).start()
        self.playwright = ready.result(SECONDS)

    def drive(self, ready):
        from playwright.sync_api import sync_playwright
        with sync_playwright() as playwright:
            ready.set_result(playwright)
            while True:
                function, answer = self.calls.get()
                try:
                    answer.set_result(function())
                except BaseException as error:      # whoever called it is to know
                    answer.set_exception(error)

    def do(self, function, *arguments):
        """The function's result, called in the thread. RuntimeError: an outage."""
        answer = Future()
        self.calls.put((lambda: function(*arguments), answer))
        try:
            return answer.result(0 if self.stuck else 2 * SECONDS)
        except TimeoutError:
            self.stuck = True
            raise RuntimeError("webarena: Chromium does not answer") from None
        except Exception as error:
            raise RuntimeError(f"webarena: Chromium failed: {plain(str(error))[:200]}") from None

    def context(self):
        """A new profile. A Chromium that died is replaced."""
        if self.browser is None or not self.browser.is_connected():
            self.browser = self.playwright.chromium.launch(
                executable_path=self.path, args=FLAGS, timeout=1000 * SECONDS)
        return self.browser.new_context(viewport=dict(width=WIDTH, height=HEIGHT),
                                        java_script_enabled=False)


def started():
    """The Driver. RuntimeError: playwright is not installed, or no Chromium."""
    global driver
    with lock:
        if driver is None or driver.stuck:
            path = next(filter(None, map(shutil.which, PATHS)), None)
            if path is None or find_spec("playwright") is None:
                raise RuntimeError(MISSING)
            driver = Driver(path)
        return driver


def on_thread(method):
    """The method, called in the driver's thread."""
    def call(self, *arguments):
        return self.driver.do(method, self, *arguments)
    return call


class Chromium:
    """The methods of browser.Browser."""

    def __init__(self, request):
        self.request, self.seen, self.driver = request, {}, started()
        self.refused, self.awaited, self.redirected = None, 0, False    # of the last action
        self.open()

    @on_thread
    def open(self):
        self.context = self.driver.context()
        self.context.set_default_timeout(1000 * SECONDS)
        self.context.route("**/*", self.answer)
        self.new_tab()

    def answer(self, route):
        """One request of a page, answered as the text browser's."""
        sent = route.request
        form = parse_qsl((sent.post_data or "").replace("%0D%0A", "%0A"), True) or None
        try:
            page = self.request(sent.method, address(sent.url), form)
        except (PermissionError, ValueError) as refusal:
            self.refused = f"{refusal}"
            return route.abort("aborted")       # the page before it stays
        if not sent.is_navigation_request():        # a picture
            return route.abort()
        body, self.redirected = page.html, sent.method == "POST" and page.url != sent.url
        self.awaited += 1
        if self.redirected:                 # by the page: else its next request did not come here
            body = f'<meta http-equiv="refresh" content="0;url={escape(page.url)}">'
        route.fulfill(status=page.status, body=body, content_type="text/html; charset=utf-8")

    @on_thread
    def close(self):
        with contextlib.suppress(Exception):        # a Chromium that is gone holds nothing
            self.context.close()

    @property
    def tabs(self):
        return self.context.pages

    @property
    @on_thread
    def url(self):
        return self.page.url

    @on_thread
    def document(self):
        self.page.evaluate(KEEP)
        return parsed(self.page.content())

    @on_thread
    def observation(self):
        self.seen = {node.id: node for place, node in self.tree() if place == 0}
        return written([page.title() for page in self.tabs], self.tabs.index(self.page),
                       self.seen.values())

    @on_thread
    def lines(self):
        return self.tree()

    def describe(self, number):
        return self.seen[number].text if number in self.seen else ""

    @on_thread
    def act(self, action):
        try:
            verb, arguments = with_element(action, self.seen)
        except ValueError as refusal:
            return f"{refusal}"
        self.refused, self.awaited, self.redirected = None, 0, False
        problem = getattr(self, verb)(*arguments)
        self.settle()
        return problem or self.refused

    def settle(self):
        """Wait for the page that the action asked for, if it asked for one."""
        for _ in range(3):          # there and back: by then its request has come
            with contextlib.suppress(Exception):        # the page has gone: it comes
                self.page.evaluate("0")
            self.page.wait_for_timeout(15)
        ends = time.monotonic() + SECONDS
        while self.awaited > 0 or self.redirected:
            self.page.wait_for_timeout(5)
            if time.monotonic() > ends:
                raise TimeoutError("a page did not load")

    def arrived(self, page):
        self.awaited -= 1

    def tree(self):
        """[(place, Node)] as browser.Browser.lines; an element is (id in the DOM, role, x, y of its
        centre in the window)."""
        client = self.context.new_cdp_session(self.page)
        sent = client.send("Accessibility.getFullAXTree")["nodes"]
        shot = client.send("DOMSnapshot.captureSnapshot", dict(computedStyles=[]))["documents"][0]
        client.detach()
        boxes = {shot["nodes"]["backendNodeId"][n]: box for n, box in
                 zip(shot["layout"]["nodeIndex"], shot["layout"]["bounds"])}
        top, tree, nodes = shot.get("scrollOffsetY", 0), {node["nodeId"]: node for node in sent}, []

        def say(depth, place, number, spot, text):
            if text and not repeated(text, [node for _, node in nodes[-3:]]):
                nodes.append((place, Node(depth, number, spot, f"StaticText {text!r}")))

        def visit(node, depth, place):
            role, name = node["role"]["value"], plain(node.get("name", {}).get("value"))
            number, dom = int(node["nodeId"]), node.get("backendDOMNodeId")
            x, y, width, height = boxes.get(dom, (0, 0, 0, 0))
            if width * height > 0:      # an option has no place but its select's
                place = (y >= top + HEIGHT) - (y + height <= top)
            spot, drawn = (dom, role, x + width / 2, y + height / 2 - top), width * height > 0
            if role == "StaticText":
                say(depth, place, number, spot, name * drawn)
            elif role in ("RootWebArea", "option") or drawn and (
                    name and role not in UNSEEN or role not in UNSEEN | DROPPED):
                nodes.append((place, Node(depth, number, spot,
                                          f"{role} {name!r}{properties_of(node, role)}")))
                depth += 1
            if role in FIELDS:
                value = plain(str(node.get("value", {}).get("value", "")))
                say(depth, place, 10**9 + number, spot, value)
            elif role != "option":
                for child in node["childIds"]:
                    if child in tree:
                        visit(tree[child], depth, place)
        visit(sent[0], 0, 0)
        return nodes

    # Actions: -> None, or a sentence

    def point(self, element):
        _, _, x, y = element
        self.page.mouse.move(x, y)

    hover = point

    def click(self, element):
        number, role, x, y = element
        if role != "option":
            self.page.mouse.click(x, y)
            return
        client = self.context.new_cdp_session(self.page)        # a closed list has no place
        found = client.send("DOM.resolveNode", dict(backendNodeId=number))["object"]["objectId"]
        client.send("Runtime.callFunctionOn", dict(
            objectId=found, functionDeclaration="function() { this.selected = true }"))
        client.detach()

    def type(self, element, text, enter):
        self.click(element)
        self.page.keyboard.type(text[:MOST_LETTERS])
        if enter:
            self.page.keyboard.press("Enter")

    def press(self, keys):
        names = [KEYS.get(key.lower(), key) for key in keys.split("+")]
        try:
            self.page.keyboard.press(keys if keys == "+" else "+".join(names))
        except Exception as error:
            if "Unknown key" not in str(error):     # that does nothing
                raise

    def scroll(self, direction):
        self.page.evaluate(f"scrollBy(0, {HEIGHT if direction == 'down' else -HEIGHT})")

    def new_tab(self):
        if len(self.tabs) >= MOST_TABS:
            return f"{MOST_TABS} tabs are open; close one first"
        self.page = self.context.new_page()
        self.page.on("domcontentloaded", self.arrived)

    def tab_focus(self, number):
        if not number < len(self.tabs):
            return f"there is no tab {number}; tabs are 0 to {len(self.tabs) - 1}"
        self.page = self.tabs[number]
        self.page.bring_to_front()

    def close_tab(self):
        self.page.close()
        if not self.tabs:
            self.new_tab()
        self.page = self.tabs[-1]

    def goto(self, url):
        try:
            url = address(url)
        except (PermissionError, ValueError) as refusal:
            return f"{refusal}"
        try:
            self.page.goto(url)
        except Exception:
            if not self.refused:
                raise

    def go_back(self):
        self.page.go_back()

    def go_forward(self):
        self.page.go_forward()


def properties_of(node, role):
    """What stands behind the name."""
    said = ""
    for entry in node.get("properties", ()):
        wanted = SHOWN | ({"required"} if role in FIELDS - {"searchbox"} else set())
        if entry["name"] in wanted and (role != "RootWebArea" or entry["name"] == "focused"):
            said += f" {entry['name']}: {entry['value'].get('value')}"
    return said
