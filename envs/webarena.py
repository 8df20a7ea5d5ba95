"""webarena: do on five web sites what somebody asks for; after WebArena as AgentGym serves it.

    env:    OBSERVATION:
            Tab 0 (current): One Stop Market

            [1] RootWebArea 'One Stop Market' focused: True
                [8] link 'One Stop Market'
                [11] textbox 'Search' required: False
                [12] button 'Search'
                [13] link 'My Cart (0)' ...                     (60 lines of a page at once)
            URL: http://onestopmarket.com/
            OBJECTIVE: What is the price of the Fernhill Rain Jacket?
            PREVIOUS ACTION: None
    agent:  I search for it. ```type [11] [Fernhill Rain Jacket] [1]```
    env:    ... PREVIOUS ACTION: type [11] [Fernhill Rain Jacket ] where [11] is textbox 'Search'...
    agent:  ```click [47]```                            -> the product's page
    agent:  ```stop [94.95]```                                          reward 1, done

Five sites and a homepage that links them: a shop, its administration, a forum, a code host and a
map, under the host names of WebArena's (arXiv:2307.13854); the user is logged in. Everything else
about them is our own: pages, products, people, streets, tasks. So no score is comparable to a
published one. Observations, actions, errors and the three evaluators are the original's, and a task
is a config in its format (`Env.config`). Each episode has a database of its own.

Reward 1 at `stop`, if all hold that the config asks for, else 0: string_match of the answer (text
that it must include, or "N/A" where a task cannot be done; no language model judges), url_match of
the page, program_html of what pages then contain.

48 templates of tasks; their families are the sites. TRAIN has 45 tasks of a template, TEST 5, in
worlds of their own (prices, orders, votes, places differ by task) and about products, posts,
projects or places that the other never asks about. A random player solves 0% of TEST, `expert` all,
in 4.9 turns on average, 11 at most: it succeeds from any page, but not after what cannot be undone.

The browser is our own, without JavaScript and pixels: envs/web/browser.py. `--data chromium` plays
in Chromium. `python -m envs.webarena` prints an address where a person can walk the sites.
"""
import re
from html import unescape
from urllib.parse import parse_qs, parse_qsl, urlsplit

from lxml import html

import envs
from envs.parts.agentgym import Manner
from envs.parts.wires import Wire
from envs.web import browser as text_browser
from envs.web import tasks
from envs.web.browser import chosen, name_of, parsed, plain, role_of, value_of
from envs.web.prompt import RULES, UNPARSED, WRITE, read_fenced

NAME, HORIZON, SUCCESS = "webarena", 15, 1.0
ENGINE = "lxml, SQLite"
BROWSER = ""            # "chromium": see `use`
KINDS = len(tasks.TEMPLATES)
TRAIN = tuple(i for i in range(50 * KINDS) if i // KINDS % 10 != 9)
TEST = tuple(i for i in range(50 * KINDS) if i // KINDS % 10 == 9)
TEST_SET = frozenset(TEST)
ORIGINAL = range(812)       # the ids that AgentGym's server has, too; its tasks are others
FAMILIES = tuple(tasks.HOSTS)
PROMPT = """You use a web browser to do what the objective says. You see the tabs, and the part of \
the page that is in view as an accessibility tree: [id] role 'name' properties.
Actions, one per turn, between triple backticks, with each argument in square brackets:
```click [id]```
```type [id] [text] [0]``` - write text into a field, behind what stands there; with [1] in place \
of [0] also press Enter
```hover [id]```
```press [keys]``` - such as Enter, Backspace or Ctrl+a
```scroll [down]``` or ```scroll [up]```
```goto [address]```, ```go_back```, ```go_forward```
```new_tab```, ```tab_focus [number]```, ```close_tab```
```stop [answer]``` - when the objective is reached; the answer is a text where one is asked for, \
and N/A where the task cannot be done
To replace what stands in a field: click it, press Ctrl+a, press Backspace, type.
The sites are linked at http://homepage.com. You are logged in everywhere. Ids change with the page.
An example: ```type [164] [restaurants near the station] [1]```"""
EXAMPLE = "```click [11]```"
TOOLS = {"```click [{id}]```": "Click the element with this id.",
         "```type [{id}] [{text}] [{enter}]```": "Write text into a field; enter 1: then press "
                                                 "Enter, 0: do not.",
         "```hover [{id}]```": "Point at the element with this id.",
         "```press [{keys}]```": "Press a key or several together, such as Ctrl+a.",
         "```scroll [{direction}]```": "Scroll the page up or down.",
         "```goto [{address}]```": "Go to this address.", "```go_back```": "Go back a page.",
         "```go_forward```": "Go forward a page.", "```new_tab```": "Open an empty tab.",
         "```tab_focus [{number}]```": "Switch to the tab with this number.",
         "```close_tab```": "Close this tab.",
         "```stop [{answer}]```": "End the task with this answer; N/A: it cannot be done."}
# As AgentGym has it: its JSON, how its client talks to a model.
WIRE = Wire(id_key="env_idx", create="{env_idx}", task_key="idx",
            reset="{observation sites object}", closed={"closed": "closed"},
            step="{observation reward terminated truncated}",
            look={"observation_metadata": "observation_metadata"})
AGENTGYM = Manner(RULES, read_fenced, agreed="Ok.", write=WRITE)
SEVERAL = "There is more than one action between triple backticks; give one"
ECHO = 100              # letters of a reply that an error repeats
GRAMMAR = {             # verb: what is behind it
    "click": r" ?\[(\d+)\]", "hover": r" ?\[(\d+)\]", "type": r" ?\[(\d+)\] ?\[(.+)\] ?\[(\d+)\]",
    "press": r" ?\[(.+)\]", "scroll": r" ?\[?(up|down)\]?", "goto": r" ?\[(.+)\]",
    "tab_focus": r" ?\[(\d+)\]", "stop": r"( ?\[(.+)\])?", "new_tab": "", "close_tab": "",
    "go_back": "", "go_forward": ""}


def use(data):
    """What differs when it plays in Chromium: envs.with_data."""
    if data != "chromium":
        raise ValueError(f"data={data!r}: webarena takes chromium, or no data")
    return dict(BROWSER=data)


def family(task_id):
    return tasks.TEMPLATES[task_id % KINDS][0]


def fingerprint(task_id):
    """What is asked for: what TRAIN asks, TEST never does."""
    web, task = tasks.task_of(task_id, task_id % KINDS, task_id in TEST_SET)
    web.close()
    return task.config["intent"]


# ---- actions ------------------------------------------------------------------------------------

def read_action(reply):
    """ "... ```click [12]```" -> ("click", 12). ValueError: what is wrong, in WebArena's words."""
    blocks = re.findall("```(.*?)```", reply, re.DOTALL)
    if not blocks:
        raise ValueError(UNPARSED)
    if len(blocks) > 1:
        raise ValueError(SEVERAL)
    text = blocks[0].strip()
    verb = (text.partition("[")[0] if "[" in text else text).split()
    verb = verb[0] if len(verb) == 1 or verb and "[" not in text else ""
    if verb not in GRAMMAR:
        raise ValueError(f"Invalid action {text[:ECHO]}")
    if verb == "type" and not text.endswith(("[0]", "[1]")):
        text += " [1]"
    found = re.search(verb + GRAMMAR[verb], text)
    if not found:
        raise ValueError(f"Invalid {verb} action {text[:ECHO]}")
    groups = found.groups()
    if verb == "type":
        return verb, int(groups[0]), groups[1], groups[2] == "1"
    if verb == "stop":
        return verb, groups[1] or ""
    return verb, *[int(group) if verb in ("click", "hover", "tab_focus") else group
                   for group in groups]


def told(action, what):
    """PREVIOUS ACTION; what: the line of the element that it was done to."""
    verb, *rest = action
    if verb in ("click", "hover"):
        return f"{verb} [{rest[0]}] where [{rest[0]}] is {what}"
    if verb == "type":
        return f"type [{rest[0]}] [{rest[1]}{' ' * rest[2]}] where [{rest[0]}] is {what}"
    verb = {"tab_focus": "page_focus"}.get(verb, verb)
    return f"{verb} [{rest[0]}]" if rest else verb


# ---- evaluators: config["eval"] -> 0 or 1, each as in WebArena's evaluation_harness -------------

def clean(text):
    """Lower case, without the quotes around it."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def included(phrase, text, alone=False):
    """alone: the only phrase, which as a single letter or digit must be a word of its own."""
    phrase, text = clean(phrase), clean(text)
    if alone and len(phrase) == 1:
        return phrase in re.findall(r"\w+|[^\w\s]", text)
    return phrase in text


def string_match(wanted, answer):
    """fuzzy_match, which a language model judges in the original: as must_include, and "N/A" must
    be the whole answer."""
    good = True
    for way, value in wanted["reference_answers"].items():
        if way == "exact_match" or value == "N/A":
            good &= clean(value) == clean(answer)
        elif way in ("must_include", "fuzzy_match"):
            good &= all(included(phrase, answer, len(value) == 1) for phrase in value)
        else:
            raise ValueError(f"webarena: unknown reference_answers {way!r}")
    return good


def url_match(wanted, url):
    """Some reference's host and path lie in the url's, and each of their queries' keys has there a
    value that one of them has."""
    def parts(address):
        split = urlsplit(address.rstrip("/"))
        return (split.netloc + split.path).rstrip("/"), parse_qs(split.query)
    path, query = parts(url)
    references = [parts(one) for one in wanted["reference_url"].split(" |OR| ")]
    keys = {}
    for _, asked in references:
        for key, values in asked.items():
            keys.setdefault(key, set()).update(values)
    return any(base in path for base, _ in references) and all(
        values & {*query.get(key, ())} for key, values in keys.items())


def located(document, locator):
    """What `document.querySelector("CSS").outerText` is on a page; "": no such element. An empty
    locator takes the whole page."""
    if not locator.strip():
        return unescape(html.tostring(document, encoding="unicode"))
    found = re.fullmatch(r"document\.querySelector\((['\"])(.+)\1\)\.(\w+);?", locator.strip())
    if not found or found[3] not in ("outerText", "innerText", "textContent", "value",
                                     "outerHTML"):
        raise ValueError(f"webarena: unknown locator {locator!r}")
    element = next(iter(document.cssselect(found[2])), None)
    if element is None:
        return ""
    if found[3] == "outerHTML":
        return unescape(html.tostring(element, encoding="unicode", with_tail=False))
    if found[3] != "value":
        return seen_text(element)
    if element.tag == "select":
        return next((x.get("value", plain(x.text_content())) for x in chosen(element)), "")
    return value_of(element)


def seen_text(element):
    """The text of a page's part, its pieces a space apart."""
    return " ".join(plain(" ".join(element.itertext())).split())


def program_html(wanted, page_of):
    """page_of: "last" or an address -> the page, parsed."""
    for target in wanted["program_html"]:
        text = located(page_of(target["url"]), target["locator"])
        required = target["required_contents"]
        if "exact_match" in required:
            good = clean(required["exact_match"]) == clean(text)
        elif "must_include" in required:
            good = all(any(included(part, text) for part in content.split(" |OR| "))
                       for content in required["must_include"])
        else:
            raise ValueError(f"webarena: unknown required_contents {required}")
        if not good:
            return False
    return True


# ---- the environment ----------------------------------------------------------------------------

class Env(envs.Base):
    web = browser = None
    last = None             # the action before

    def __init__(self):
        if self.module.BROWSER:
            from envs.web import chromium
            chromium.started()          # RuntimeError: what is missing

    def start(self, task_id):
        self.close()
        self.web, self.task = tasks.task_of(task_id, task_id % KINDS, task_id in TEST_SET)
        self.config, self.last, self.read = self.task.config, None, set()
        if self.module.BROWSER:
            from envs.web.chromium import Chromium
            self.browser = Chromium(self.web.request)
        else:
            self.browser = text_browser.Browser(self.web.request)
        self.browser.act(("goto", self.task.start))
        return self.look("None")

    def close(self):
        held, self.web, self.browser = (self.browser, self.web), None, None
        for one in filter(None, held):
            one.close()

    def look(self, previous):
        """The observation in the original's template."""
        page, url = self.browser.observation(), self.browser.url
        for step in self.task.steps:
            if step.do == "read" and self.at(step.where, url):
                self.read |= {text for text in step.what if repr(text)[1:-1] in page}
        return f"OBSERVATION:\n{page}\nURL: {url}\nOBJECTIVE: {self.object}\n" \
               f"PREVIOUS ACTION: {previous}"

    def act(self, action):
        try:
            action = read_action(action)
        except ValueError as problem:
            return f"{problem}", 0.0, False, dict(success=False, valid=False, score=0.0)
        if action[0] == "stop":
            score = float(self.judge(action[1]))
            return self.look(told(action, "")), score, True, dict(
                success=score >= SUCCESS, valid=True, score=score)
        what = self.browser.describe(action[1]) if len(action) > 1 else ""
        problem, self.last = self.browser.act(action), action
        return self.look(problem or told(action, what)), 0.0, False, dict(
            success=False, valid=not problem, score=0.0)

    def judge(self, answer):
        """Whether the task is done, with this answer."""
        wanted, good = self.config["eval"], True
        for kind in wanted["eval_types"]:
            good &= {"string_match": lambda: string_match(wanted, answer),
                     "url_match": lambda: url_match(wanted, self.browser.url),
                     "program_html": lambda: program_html(wanted, self.page_of)}[kind]()
        return good

    def page_of(self, url):
        return self.browser.document() if url == "last" else parsed(
            self.web.request("GET", url).html)

    # What AgentGym's server tells beside: /reset, and GET /observation_metadata

    @property
    def sites(self):
        return self.config["sites"]

    @property
    def object(self):
        return self.config["intent"]

    def observation_metadata(self):
        return {"obs_nodes_info": {str(number): {"text": f"[{number}] {node.text}"}
                                   for number, node in self.browser.seen.items()}}

    # Players

    def at(self, where, url):
        """Whether an address is that of a step: the same path, and what its query asks for."""
        there, here = urlsplit(self.task.host + where), urlsplit(url)
        if where == "":
            return there.netloc == here.netloc
        return (there.netloc, there.path) == (here.netloc, here.path) and \
            {*parse_qsl(there.query)} <= {*parse_qsl(here.query)}

    def done_now(self):
        """Whether all that had to be read was seen, and all that had to be done is done."""
        texts = {text for step in self.task.steps if step.do == "read" for text in step.what}
        return texts <= self.read and self.judge(self.task.answer)

    def expert(self):
        """The last step of the task's way that fits the page; from elsewhere, back to its start."""
        task = self.task
        if self.done_now():
            return ("That is what was asked for.", f"```stop [{task.answer}]```")
        lines = self.browser.lines()
        for step in reversed(task.steps):
            if self.at(step.where, self.browser.url):
                if found := getattr(self, f"to_{step.do}")(lines, step):
                    return found
        return "I start from the site's first page.", f"```goto [{task.start}]```"

    def to_read(self, lines, step):
        for text in step.what:
            for place, node in lines:
                if text not in self.read and repr(text)[1:-1] in node.text and place:
                    return scroll(place, "what I look for")

    def to_click(self, lines, step):
        role, name = step.what
        if found := find(lines, role, name, step.after):
            place, node, _ = found
            return scroll(place, name) or (f"I need {name}.", f"```click [{node.id}]```")

    def to_fill(self, lines, step):
        """The first field that has not its value yet, then the button."""
        fields, button = step.what
        for name, value in fields.items():
            if action := self.to_write(lines, step.after, name, value,
                                       len(fields) == 1 and button):
                return action
        found = button and find(lines, "button", button, step.after)
        if found:
            place, node, _ = found
            return scroll(place, button) or (f"All is filled in: {button}.",
                                             f"```click [{node.id}]```")

    def to_write(self, lines, after, name, value, enter):
        """The next action towards this value of a field; None: it has it, or is not there."""
        for role in ("textbox", "spinbutton", "combobox", "checkbox"):
            if found := find(lines, role, name, after):
                break
        else:
            return None
        place, node, number = found
        same = [x for x in self.browser.document().iter("input", "textarea", "select")
                if role_of(x) == role and name_of(x, role) == name]
        field, click = same[number], f"```click [{node.id}]```"
        if role == "checkbox":
            right = ("checked" in field.attrib) == value
            return None if right else scroll(place, name) or (f"I tick {name}.", click)
        if role == "combobox":
            if [plain(x.text_content()) for x in chosen(field)] == [value]:
                return None
            place, option, _ = find(lines[lines.index((place, node)):], "option", value, "")
            return scroll(place, value) or (f"{name} should be {value}.",
                                            f"```click [{option.id}]```")
        if value_of(field).strip() == value:
            return None
        if place:
            return scroll(place, name)
        if not value_of(field):
            enter = int(bool(enter) and field.tag == "input")
            return f"I write {value!r} into {name}.", f"```type [{node.id}] [{value}] [{enter}]```"
        if self.last == ("press", "Ctrl+a"):
            return "It is marked and can go.", "```press [Backspace]```"
        if self.last == ("click", node.id):
            return f"I mark what stands in {name}.", "```press [Ctrl+a]```"
        return f"{name} holds something else. I click it.", click

    def random_action(self, rng):
        """A click most often; or typing a word of the objective, another site, a stop."""
        ids = {role: [n for n, node in self.browser.seen.items() if node.text.startswith(role)]
               for role in ("link", "button", "option", "textbox", "checkbox")}
        word = rng.choice(re.findall(r"[\w.'-]+", self.object))
        chance = rng.random()
        if chance < 0.2 and ids["textbox"]:
            return f"```type [{rng.choice(ids['textbox'])}] [{word}] [{rng.randint(0, 1)}]```"
        if chance < 0.75 and any(ids.values()):
            return f"```click [{rng.choice(sum(ids.values(), []))}]```"
        return f"```{rng.choice(('scroll [down]', 'scroll [up]', 'go_back', f'stop [{word}]'))}```"


def scroll(place, what):
    """-> (thought, action) towards a line, or None where it is in the window."""
    if place:
        return f"I scroll to {what}.", f"```scroll [{'down' if place > 0 else 'up'}]```"


def find(lines, role, name, after):
    """The first line of this role and name behind one that has the text `after` -> (place, Node,
    how many of this role and name stand before it); None."""
    number, begun, start = 0, not after, f"{role} {name!r}"
    for place, node in lines:
        if node.text.startswith(start) and node.text[len(start):][:1] in ("", " "):
            if begun:
                return place, node, number
            number += 1
        begun = begun or repr(after)[1:-1] in node.text or after in node.text


if __name__ == "__main__":
    from envs.web.sites import serve
    serve()
