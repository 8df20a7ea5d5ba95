"""A text browser for envs/webarena.py: tabs, history and forms over a function that answers
requests, and each page as the accessibility tree that Chromium makes of it. There is no socket.

    browser = Browser(sites.request)                    # (method, url, form) -> status, url, html
    browser.act(("goto", "http://onestopmarket.com"))   -> None, or a sentence: what went wrong
    browser.observation()                               -> the tabs, and the tree in the window:

    Tab 0 (current): One Stop Market

    [1] RootWebArea 'One Stop Market' focused: True
        [12] link 'My Account'
        [14] textbox 'Search' required: False

A line is [id] role 'name' properties, a tab a level. As in WebArena (arXiv:2307.13854), a nameless
node of DROPPED is left out, its children move up, and so is a text that one of the three lines
before has. The page is parsed by lxml; what is typed and ticked is kept in the parsed elements.
Without JavaScript and pixels there are two differences from Chromium: the window holds so many
lines in place of 720 pixels, and the options of a select are always shown and can be clicked.
"""
import re
from typing import NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

from lxml import html

WINDOW = 60             # lines of a page that are seen at once
MOST_TABS, MOST_LETTERS = 20, 4000      # of a browser, of what is typed at once
DROPPED = {"", "generic", "image", "list", "strong", "paragraph", "banner", "navigation",
           "listitem", "LabelText", "Legend", "rowgroup", "caption", "emphasis", "heading"}
ROLES = {"nav": "navigation", "main": "main", "ul": "list", "ol": "list", "li": "listitem",
         "form": "form", "p": "paragraph", "strong": "strong", "em": "emphasis", "button": "button",
         "textarea": "textbox", "option": "option", "fieldset": "group", "legend": "Legend",
         "label": "LabelText", "caption": "caption", "article": "article", "aside": "complementary",
         "blockquote": "blockquote", "code": "code", "hr": "separator", "time": "time"}
TYPES = {"checkbox": "checkbox", "radio": "radio", "number": "spinbutton", "search": "searchbox",
         "submit": "button", "button": "button"}        # of an input; any other is a textbox
FIELDS = {"textbox", "searchbox", "spinbutton"}         # that can be typed in
NAMED = {"link", "heading", "button", "cell", "columnheader", "rowheader", "option"}
SECTIONS = {"article", "aside", "main", "nav", "section"}
BLOCKS = {"p", "div", "li", "ul", "ol", "td", "th", "tr", "table", "h1", "h2", "h3", "h4", "form",
          "br", "section", "article", "pre", "blockquote", "select", "option", "label"}
SEARCH = "Attempt to perfom \"{}\" on element \"[{}]\" but no matching element found. Please " \
    "check the observation more carefully."             # WebArena's words, with its spelling


class Node(NamedTuple):
    """A line of a tree."""
    depth: int
    id: int
    element: object
    text: str       # "link 'My Account'"


# ---- from HTML to the tree ----------------------------------------------------------------------

def plain(text):
    return " ".join((text or "").split())


def hidden(element):
    return (element.tag in ("head", "style", "script", "template") or "hidden" in element.attrib
            or element.tag == "input" and element.get("type") == "hidden"
            or not isinstance(element.tag, str))        # a comment


def role_of(element):
    """The role in the accessibility tree; "": it has none, and only what it holds is shown."""
    tag = element.tag
    if element.get("role"):
        return element.get("role")
    if tag == "a":
        return "link" if "href" in element.attrib else ""
    if tag == "input":
        return TYPES.get(element.get("type", "text"), "textbox")
    if tag == "select":
        return "listbox" if "multiple" in element.attrib else "combobox"
    if tag == "img":
        return "image" if element.get("alt") else ""
    if tag in ("header", "footer"):
        inside = any(above.tag in SECTIONS for above in element.iterancestors())
        return "" if inside else {"header": "banner", "footer": "contentinfo"}[tag]
    if tag == "section":
        return "region" if element.get("aria-label") else ""
    if tag in ("table", "tr", "td", "th"):
        return table_role(element)
    return "heading" if re.fullmatch("h[1-6]", tag) else ROLES.get(tag, "")


def table_role(element):
    """A table without header cells is taken for a layout, as by Chromium."""
    table = element if element.tag == "table" else next(element.iterancestors("table"), None)
    if table is None or table.find(".//th") is None:
        return ""
    if element.tag == "th":
        beside = element.getparent().find("td") is not None
        return {"row": "rowheader", "col": "columnheader"}.get(
            element.get("scope"), "rowheader" if beside else "columnheader")
    return {"table": "table", "tr": "row", "td": "cell"}[element.tag]


def label_of(control):
    """The <label> of a control, or None."""
    if control.get("id"):
        for label in control.getroottree().iterfind(".//label"):
            if label.get("for") == control.get("id"):
                return label
    return next(control.iterancestors("label"), None)


def content(element, control=None):
    """What an element says as part of a name; control: the one that is named, which says nothing.
    """
    if hidden(element) or element is control or element.tag == "form":
        return ""
    if element.tag in ("input", "textarea"):
        return value_of(element) if role_of(element) in FIELDS | {"button"} else ""
    if element.tag == "select":
        return " ".join(plain(option.text_content()) for option in chosen(element))
    if element.tag == "img":
        return element.get("alt", "")
    text = element.text or ""
    for child in element:
        inner = content(child, control)
        text += (f" {inner} " if child.tag in BLOCKS else inner) + (child.tail or "")
    return text


def name_of(element, role):
    """The accessible name."""
    name = element.get("aria-label")
    if name is None and element.tag in ("input", "select", "textarea") and role != "button":
        label = label_of(element)
        own = "" if label is None else plain(content(label, element))
        name = own or element.get("title") or element.get("placeholder")
    elif name is None and element.tag == "input":
        name = element.get("value", "Submit")
    elif name is None and role in NAMED:
        name = content(element)
    elif name is None and role in ("group", "table"):
        title = element.find("legend" if role == "group" else "caption")
        name = None if title is None else content(title)
    elif role == "image":
        name = element.get("alt")
    return plain(name or element.get("title"))


def properties_of(element, role, focus):
    """What stands behind the name."""
    said = " focused: True" if element is focus else ""
    if "disabled" in element.attrib:
        said += " disabled: True"
    if role in FIELDS - {"searchbox"}:
        said += f" required: {'required' in element.attrib}"
    elif role in ("checkbox", "radio"):
        said += f" checked: {str('checked' in element.attrib).lower()}"
    elif role == "combobox":
        said += " hasPopup: menu expanded: False"
    elif role == "option":
        said += f" selected: {element in chosen(element.getparent())}"
    return said


def value_of(field):
    """What stands in a text field."""
    return (field.text or "") if field.tag == "textarea" else field.get("value", "")


def chosen(select):
    """The selected options; without one the first, unless several can be chosen."""
    options = list(select.iter("option"))
    marked = [option for option in options if "selected" in option.attrib]
    return marked[-1:] or options[:1] if "multiple" not in select.attrib else marked


def tree_of(document, focus=None):
    """[Node] of a page. Ids: an element's place among all, a text's after them, so that what is
    typed moves none."""
    elements = list(document.iter())
    place = {element: n for n, element in enumerate(elements, 1)}
    title = plain(document.findtext(".//title"))
    nodes = [Node(0, 1, document, f"RootWebArea {title!r} focused: True")]

    def say(depth, element, behind, text):
        if (text := plain(text)) and not repeated(text, nodes):
            nodes.append(Node(depth, len(elements) + 2 * place[element] + behind, element,
                              f"StaticText {text!r}"))

    def visit(element, depth):
        if hidden(element):
            return
        role = role_of(element)
        name = name_of(element, role)
        if name and role or role not in DROPPED:
            nodes.append(Node(depth, place[element], element, f"{role} {name!r}"
                              + properties_of(element, role, focus)))
            depth += 1
        if role in FIELDS:
            say(depth, element, 0, value_of(element))
        elif role != "option":
            silent = element.tag == "label" and redundant(element)
            say(depth, element, 0, "" if silent else element.text)
            for child in element:
                visit(child, depth)
                say(depth, child, 1, "" if silent else child.tail)
    body = document.find("body")
    if body is not None:
        visit(body, 1)
    return nodes


def repeated(text, nodes):
    """Whether one of the three lines before has it, so that it is left out."""
    return any(repr(text)[1:-1] in node.text for node in nodes[-3:])


def control_of(label):
    """The control that a <label> belongs to, or None."""
    if label.get("for"):
        for control in label.getroottree().iter("input", "select", "textarea"):
            if control.get("id") == label.get("for"):
                return control
        return None
    return next(label.iter("input", "select", "textarea"), None)


def redundant(label):
    """Whether a label only repeats the name of a box or radio button, so that its text is left out:
    it holds nothing but text and this control."""
    control = control_of(label)
    return control is not None and control.get("type") in ("checkbox", "radio") and all(
        child is control for child in label)


# ---- the browser --------------------------------------------------------------------------------

class Tab:
    """urls: where it has been; place: in them; top: the first line of the window."""

    def __init__(self):
        self.urls, self.place = ["about:blank"], 0
        self.show(parsed(""))

    def show(self, document):
        self.document, self.focus, self.marked, self.top = document, None, False, 0

    @property
    def url(self):
        return self.urls[self.place]


def with_element(action, seen):
    """("type", 12, "mug", 1) -> ("type", [the element seen as 12, "mug", 1]). seen: {id: Node} of
    the last observation. ValueError, in WebArena's words: it has no such id."""
    verb, *arguments = action
    if verb in ("click", "hover", "type"):
        if arguments[0] not in seen:
            raise ValueError(SEARCH.format(verb, arguments[0]))
        arguments[0] = seen[arguments[0]].element
    return verb, arguments


class Browser:
    """See the head of this file. A browser of envs/web/chromium.py has the same five methods."""

    def __init__(self, request):
        self.request, self.tabs, self.tab = request, [], None
        self.seen = {}          # id: Node, of the window
        self.new_tab()

    def close(self):
        """Nothing is held."""

    @property
    def url(self):
        return self.tab.url

    def document(self):
        """The page of the current tab, parsed, with what was typed in it."""
        return self.tab.document

    def lines(self):
        """[(place, Node)] of the page; place: -1 above the window, 0 in it, 1 below."""
        tab, nodes = self.tab, tree_of(self.tab.document, self.tab.focus)
        tab.top = max(0, min(tab.top, len(nodes) - WINDOW))
        places = [(n >= tab.top + WINDOW) - (n < tab.top) for n in range(len(nodes))]
        depth = nodes[tab.top].depth
        for n in range(tab.top - 1, -1, -1):
            if nodes[n].depth < depth:      # what holds the window's first line is seen as well
                depth, places[n] = nodes[n].depth, 0
        return list(zip(places, nodes))

    def observation(self):
        """The text of the tabs and of the window."""
        self.seen = {node.id: node for place, node in self.lines() if place == 0}
        titles = [plain(tab.document.findtext(".//title")) for tab in self.tabs]
        return written(titles, self.tabs.index(self.tab), self.seen.values())

    def describe(self, number):
        """What the last observation said of this id: "link 'Blue mug'"; "" if nothing."""
        return self.seen[number].text if number in self.seen else ""

    def act(self, action):
        """Do ("click", 12) or the like: see envs/webarena.py. -> None, or what went wrong."""
        try:
            verb, arguments = with_element(action, self.seen)
            return getattr(self, verb)(*arguments)
        except (PermissionError, ValueError) as refusal:        # an id, host or port that is none
            return f"{refusal}"

    # Actions: -> None, or a sentence

    def hover(self, element):
        """Nothing opens here by pointing at it."""

    def scroll(self, direction):
        self.tab.top = max(0, self.tab.top + (WINDOW if direction == "down" else -WINDOW))

    def new_tab(self):
        if len(self.tabs) >= MOST_TABS:
            return f"{MOST_TABS} tabs are open; close one first"
        self.tab = Tab()
        self.tabs.append(self.tab)

    def tab_focus(self, number):
        if not number < len(self.tabs):
            return f"there is no tab {number}; tabs are 0 to {len(self.tabs) - 1}"
        self.tab = self.tabs[number]

    def close_tab(self):
        self.tabs.remove(self.tab)
        if not self.tabs:
            self.new_tab()
        self.tab = self.tabs[-1]

    def goto(self, url):
        self.load("GET", address(url))

    def go_back(self):
        self.travel(-1)

    def go_forward(self):
        self.travel(1)

    def travel(self, way):
        tab = self.tab
        if 0 <= tab.place + way < len(tab.urls):
            tab.place += way
            blank = tab.url == "about:blank"
            tab.show(parsed("" if blank else self.request("GET", tab.url, None).html))

    def load(self, method, url, form=None):
        page, tab = self.request(method, url, form), self.tab
        if page.url != tab.url:
            tab.urls[tab.place + 1:] = [page.url]
            tab.place += 1
        tab.show(parsed(page.html))

    def click(self, element):
        """Click it, or what it lies in that can be clicked."""
        tab, tags = self.tab, ("a", "button", "input", "select", "option", "textarea", "label")
        while element is not None and (element.tag not in tags or role_of(element) == ""):
            element = element.getparent()
        if element is not None and element.tag == "label":
            element = control_of(element)
        tab.focus, tab.marked = None, False
        if element is None or "disabled" in element.attrib:
            return
        tab.focus, role = None if element.tag == "option" else element, role_of(element)
        if role == "link":
            url = urljoin(tab.url, element.get("href"))
            if "#" not in url or urlsplit(url)[:4] != urlsplit(tab.url)[:4]:
                self.load("GET", address(url))
        elif role == "button" and element.get("type", "submit") == "submit":
            self.submit(element)
        elif role == "option":
            pick(element)
        elif role == "checkbox" and element.attrib.pop("checked", None) is None:
            element.set("checked", "")
        elif role == "radio":
            for other in form_of(element).iter("input"):
                if other.get("type") == "radio" and other.get("name") == element.get("name"):
                    other.attrib.pop("checked", None)
            element.set("checked", "")

    def type(self, element, text, enter):
        """Click it, write behind what stands in it, or choose the option that begins so."""
        self.click(element)
        self.write(text)
        if enter:
            self.press("Enter")

    def write(self, text):
        tab, field = self.tab, self.tab.focus
        if field is not None and field.tag == "select":
            options = [option for option in field.iter("option")
                       if plain(option.text_content()).lower().startswith(text.lower())]
            if options:
                pick(options[0])
        elif field is not None and role_of(field) in FIELDS and "readonly" not in field.attrib:
            if field.get("type") == "number":
                text = re.sub("[^0-9.eE+-]", "", text)
            old, tab.marked = "" if tab.marked else value_of(field), False
            put(field, (old + text)[:int(field.get("maxlength", MOST_LETTERS))])

    def press(self, keys):
        """A key: Enter, Backspace, Delete, Ctrl+a, or a letter. Others do nothing here."""
        tab, field, key = self.tab, self.tab.focus, keys.replace("Control", "Ctrl").lower()
        typed = field is not None and role_of(field) in FIELDS
        if key == "enter" and typed and field.tag == "textarea":
            self.write("\n")
        elif key == "enter" and field is not None:
            self.enter(field)
        elif key in ("ctrl+a", "meta+a"):
            tab.marked = typed
        elif key in ("backspace", "delete") and typed:
            keep = value_of(field)[:-1] if key == "backspace" else value_of(field)
            put(field, "" if tab.marked else keep)
            tab.marked = False
        elif len(keys) == 1:
            self.write(keys)

    def enter(self, field):
        if role_of(field) in ("link", "button"):
            self.click(field)
        elif field.tag == "input" and (form := form_of(field)).tag == "form":
            buttons = [x for x in form.iter("button", "input") if role_of(x) == "button"
                       and x.get("type", "submit") == "submit"]
            self.submit(buttons[0] if buttons else None, form)

    def submit(self, button, form=None):
        """Send the form, unless a required field is empty: that gets the focus, as in Chromium."""
        form = form_of(button) if form is None else form
        if form.tag != "form":
            return
        fields = [x for x in form.iter("input", "textarea", "select", "button")
                  if "disabled" not in x.attrib and (role_of(x) != "button" or x is button)]
        for field in fields:
            if "required" in field.attrib and not any(values_of(field)):
                self.tab.focus = field
                return
        pairs = [(x.get("name"), value) for x in fields if x.get("name") for value in values_of(x)]
        url = address(urljoin(self.tab.url, form.get("action") or self.tab.url))
        if form.get("method", "get").lower() == "post":
            self.load("POST", url, pairs)
        else:
            self.load("GET", f"{url.partition('?')[0]}?{urlencode(pairs)}")


def written(titles, current, nodes):
    """An observation: the tabs by their titles, and the tree."""
    titles = [f"Tab {n}{' (current)' * (n == current)}: {title}"
              for n, title in enumerate(titles)]
    lines = ["\t" * node.depth + f"[{node.id}] {node.text}" for node in nodes]
    return " | ".join(titles) + "\n\n" + "\n".join(lines)


def address(url):
    """An address as it is asked for. PermissionError: it is not one of the web."""
    url = url.strip()
    url = url if "://" in url or ":" in url.partition("/")[0] else f"http://{url}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise PermissionError(f"{url[:100]} is no address of a page; expected http://...")
    parts = urlsplit(url)
    return urlunsplit(("http", parts.netloc, parts.path or "/", parts.query, ""))


def parsed(text):
    """A page's HTML as a tree; the line break that may open a <textarea> is none of its text."""
    document = html.document_fromstring(text or "<html></html>")
    for area in document.iter("textarea"):
        area.text = (area.text or "").removeprefix("\n")
    return document


def form_of(control):
    """The <form> that it stands in, else the whole page."""
    return next(control.iterancestors("form"), control.getroottree().getroot())


def values_of(control):
    """What a control adds to a form: its values, most often one."""
    if control.tag == "select":
        return [x.get("value", plain(x.text_content())) for x in chosen(control)]
    if role_of(control) in ("checkbox", "radio"):
        return [control.get("value", "on")] if "checked" in control.attrib else []
    return [value_of(control)]


def pick(option):
    """Choose an option of a select."""
    select = next(option.iterancestors("select"))
    for other in select.iter("option"):
        other.attrib.pop("selected", None)
    option.set("selected", "")


def put(field, text):
    if field.tag == "textarea":
        field.text = text
    else:
        field.set("value", text)
