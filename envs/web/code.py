"""Gitbarn, http://gitlab.com: a code host, where nwhitlock is logged in.

Pages, and what their forms send. P stands for /OWNER/PROJECT.
    GET  /                              own projects; starred ones
    GET  /explore?q=&sort=&page=        each word is in name or description; sort: stars, name
    GET  /dashboard/issues?state=       those assigned to nwhitlock
    GET  /dashboard/merge_requests      those that nwhitlock is to review
    GET  /projects/new                  POST /projects: name, description, visibility
    GET  P                              description, README, stars     POST P/star: on or off
    GET  P/issues?state=&label=&q=      also author=, assignee=, page=; state: open, closed
    GET  P/issues/new                   POST P/issues: title, body, assignee, label
    GET  P/issues/3                     POST P/issues/3/state: Close or Reopen, one button
                                        POST P/issues/3/assign: assignee
                                        POST P/issues/3/label: label
                                        POST P/issues/3/comment: body
    GET  P/merge_requests?state=        open, merged or closed
    GET  P/merge_requests/2             POST P/merge_requests/2/comment: body
                                        POST P/merge_requests/2/assign: reviewer
                                        POST P/merge_requests/2/state: state (merged, closed)
    GET  P/commits?author=&page=        GET P/contributors: commits by author
    GET  P/members                      POST P/members: username, role
    GET  P/edit                         POST P/edit: description, readme
    GET  /nwhitlock                     a user's projects and status
    GET  /profile                       POST /profile: status

Tables:
    project(id, owner, name, description, language, visibility, readme, stars, starred, created)
        stars counts the others' stars; what is shown is stars + starred
    issue(id, project_id, number, title, body, author, assignee, label, state, day)
    merge_request(id, project_id, number, title, branch, author, reviewer, state, day)
    remark(id, kind, about, author, day, body)      kind: issue or merge_request; about: its id
    change(id, project_id, sha, author, day, message)       a commit
    member_of(id, project_id, username, role)       role: Owner, Maintainer, Developer, Guest
    person(username, name, status)
What is asked about: commits by author and time, issues and merge requests by state, label, author,
assignee, stars, members; what is done: every form above.
"""
import re

from envs.web import words
from envs.web.pages import (TODAY, Problem, area, bullets, field, form, html, link, paragraphs,
                            select, table)

NAME, COLOUR, ABOUT, ME = "Gitbarn", "#3b3560", "a code host", "nwhitlock"
LABELS = ("bug", "feature", "documentation", "help wanted")
ROLES = ("Guest", "Developer", "Maintainer", "Owner")
VISIBILITY = ("Private", "Internal", "Public")
SCHEMA = """
CREATE TABLE project(id INTEGER PRIMARY KEY, owner TEXT, name TEXT, description TEXT,
    language TEXT, visibility TEXT, readme TEXT, stars INT, starred INT, created TEXT,
    UNIQUE(owner, name));
CREATE TABLE issue(id INTEGER PRIMARY KEY, project_id INT, number INT, title TEXT, body TEXT,
    author TEXT, assignee TEXT, label TEXT, state TEXT, day TEXT);
CREATE INDEX issue_project ON issue(project_id, number);
CREATE TABLE merge_request(id INTEGER PRIMARY KEY, project_id INT, number INT, title TEXT,
    branch TEXT, author TEXT, reviewer TEXT, state TEXT, day TEXT);
CREATE INDEX merge_request_project ON merge_request(project_id, number);
CREATE TABLE remark(id INTEGER PRIMARY KEY, kind TEXT, about INT, author TEXT, day TEXT,
    body TEXT);
CREATE INDEX remark_about ON remark(about, kind);
CREATE TABLE change(id INTEGER PRIMARY KEY, project_id INT, sha TEXT, author TEXT, day TEXT,
    message TEXT);
CREATE INDEX change_project ON change(project_id);
CREATE TABLE member_of(id INTEGER PRIMARY KEY, project_id INT, username TEXT, role TEXT,
    UNIQUE(project_id, username));
CREATE TABLE person(username TEXT PRIMARY KEY, name TEXT, status TEXT);
"""
VARY = ("UPDATE project SET stars = LUCK % 900, starred = LUCK % 5 = 0",
        "UPDATE issue SET state = CASE LUCK % 3 WHEN 0 THEN 'closed' ELSE 'open' END",
        "UPDATE merge_request SET state = CASE LUCK % 4 WHEN 0 THEN 'merged' WHEN 1 THEN "
        "'closed' ELSE 'open' END", "DELETE FROM change WHERE LUCK % 4 = 0")


def fill(db, rng):
    def add(name, *row):
        db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)

    names = {name.split()[0][0].lower() + name.split()[1].lower(): name
             for name in ("Nora Whitlock", *words.DEVELOPERS)}
    for username, name in names.items():
        add("person", username, name, "")
    everyone, others = list(names), list(names)[1:]
    for number, (name, language, description, parts) in enumerate(words.PROJECTS, 1):
        owner, parts = ME if number % 4 == 1 else rng.choice(others), parts.split(", ")
        team = [owner, *rng.sample([name for name in everyone if name != owner], 4)]
        add("project", number, owner, name, description, language, "Public",
            f"{name}\n{description}.\nInstall it with your package manager, then run {name} --help."
            f"\nThe main parts are: {', '.join(parts)}.", 0, 0, words.day(rng, 2020, 2021))
        for username in team:
            add("member_of", None, number, username, "Owner" if username == owner else
                rng.choice(ROLES[:3]))
        for k, title in enumerate(rng.sample(words.PROBLEMS, rng.randint(6, 9)), 1):
            add("issue", None, number, k, title.format(part=rng.choice(parts)),
                rng.choice(words.DETAILS), rng.choice(everyone), rng.choice([*team, ""]),
                rng.choice(LABELS), "", words.day(rng, 2022, 2023))
        for k, title in enumerate(rng.sample(words.CHANGES, rng.randint(3, 5)), 1):
            title = title.format(part=rng.choice(parts))
            add("merge_request", None, number, k, title, re.sub(r"\W+", "-", title.lower()),
                rng.choice(team), rng.choice([*team, ME]), "", words.day(rng, 2022, 2023))
        for day in sorted(words.day(rng, 2022, 2023) for _ in range(rng.randint(25, 40))):
            add("change", None, number, f"{rng.getrandbits(32):08x}", rng.choice(team), day,
                rng.choice(words.CHANGES).format(part=rng.choice(parts)))
    for kind in ("issue", "merge_request"):
        for (about,) in db.execute(f"SELECT id FROM {kind}").fetchall():
            for text in rng.sample(words.REMARKS, rng.randint(0, 2)):
                add("remark", None, kind, about, rng.choice(everyone), "2023-05-30", text)


# ---- looking ------------------------------------------------------------------------------------

def bar(ask):
    return [link("/explore", "Explore"), link("/dashboard/issues", "Issues"),
            link("/dashboard/merge_requests", "Merge requests"),
            link("/projects/new", "New project"), link(f"/{ME}", ME), link("/profile", "Profile")]


def home(ask):
    own = ask.rows("SELECT project.* FROM project JOIN member_of ON project_id = project.id "
                   "WHERE username = ? ORDER BY name LIMIT 60", ME)
    starred = ask.rows("SELECT * FROM project WHERE starred ORDER BY name LIMIT 60")
    return "Projects", [html("<h2>Yours</h2>"), project_table(own), html("<h2>Starred</h2>"),
                        project_table(starred)]


def project_table(found):
    return table(["Project", "Description", "Language", "Stars"], [
        [link(f"/{x['owner']}/{x['name']}", f"{x['owner']} / {x['name']}"), x["description"],
         x["language"], x["stars"] + x["starred"]] for x in found])


def explore(ask):
    condition, values = ask.where(q="name || ' ' || description || ' ' || language")
    sort = ask.query.get("sort", "stars")
    order = "name" if sort == "name" else "stars + starred DESC"
    found, count, links = ask.paged(f"SELECT * FROM project WHERE {condition} ORDER BY {order}, "
                                    "id", *values)
    return "Explore projects", [
        form("/explore", "Search", field("Search", "q", ask.query.get("q", "")),
             select("Sort by", "sort", [("stars", "Most stars"), ("name", "Name")], sort),
             method="get", kind="inline"), project_table(found), links]


def project_of(ask, owner, name):
    return ask.row("SELECT *, '/' || owner || '/' || name AS path FROM project WHERE owner = ? "
                   "AND name = ?", owner, name)


def titled(x, title):
    """The page of a project: its title, and links to its other pages."""
    return f"{title} · {x['name']}" if title else f"{x['owner']} / {x['name']}", bullets(
        [link(x["path"] + path, text) for path, text in (
            ("", "Project"), ("/issues", "Issues"), ("/merge_requests", "Merge requests"),
            ("/commits", "Commits"), ("/contributors", "Contributors"), ("/members", "Members"))],
        "row")


def project(ask, owner, name):
    x = project_of(ask, owner, name)
    title, links = titled(x, "")
    return title, [
        links, html("<p>{description}</p><p>{language} · {visibility} · created on {created} · "
                    "{} stars</p>", x["stars"] + x["starred"], **x),
        form(f"{x['path']}/star", "Unstar" if x["starred"] else "Star", kind="inline"),
        link(f"{x['path']}/edit", "Edit README"), html("<h2>README</h2>"),
        paragraphs(x["readme"])]


def person_link(username):
    return link(f"/{username}", username) if username else "nobody"


ISSUES = ("SELECT issue.*, '/' || owner || '/' || name AS path FROM issue JOIN project ON "
          "project.id = project_id")
REQUESTS = ISSUES.replace("issue", "merge_request")


def issue_page(ask, sql, *values):
    """A page of issues or merge requests, with the filters that fit both."""
    condition, more = ask.where(state="state = ?", label="label = ?", author="author = ?",
                                assignee="assignee = ?", q="title")
    found, count, links = ask.paged(f"{sql} AND {condition} ORDER BY day DESC, number", *values,
                                    *more)
    return [form(ask.path, "Filter",
                 select("State", "state", [("", "All"), "open", "closed"],
                        ask.query.get("state", "")),
                 select("Label", "label", [("", "All"), *LABELS], ask.query.get("label", "")),
                 field("Author", "author", ask.query.get("author", "")),
                 field("Assignee", "assignee", ask.query.get("assignee", "")),
                 field("Search", "q", ask.query.get("q", "")), method="get", kind="inline"),
            html("<p>{} issues</p>", count), table(
                ["Title", "State", "Label", "Author", "Assignee", "Created"],
                [[link(f"{x['path']}/issues/{x['number']}", x["title"]), x["state"], x["label"],
                  person_link(x["author"]), person_link(x["assignee"]), x["day"]]
                 for x in found]), links]


def my_issues(ask):
    return "Issues assigned to you", issue_page(ask, f"{ISSUES} WHERE assignee = ?", ME)


def issues(ask, owner, name):
    x = project_of(ask, owner, name)
    title, links = titled(x, "Issues")
    return title, [links, html("<p>{}</p>", link(f"{x['path']}/issues/new", "New issue")),
                   issue_page(ask, f"{ISSUES} WHERE project_id = ?", x["id"])]


def request_page(ask, sql, *values):
    condition, more = ask.where(state="state = ?")
    found, count, links = ask.paged(f"{sql} AND {condition} ORDER BY day DESC, number", *values,
                                    *more)
    return [form(ask.path, "Filter", select("State", "state", [("", "All"), "open", "merged",
                                                               "closed"],
                                            ask.query.get("state", "")), method="get",
                 kind="inline"),
            html("<p>{} merge requests</p>", count), table(
                ["Title", "State", "Author", "Reviewer", "Created"],
                [[link(f"{x['path']}/merge_requests/{x['number']}", x["title"]), x["state"],
                  person_link(x["author"]), person_link(x["reviewer"]), x["day"]]
                 for x in found]), links]


def my_requests(ask):
    return "Merge requests to review", request_page(ask, f"{REQUESTS} WHERE reviewer = ?", ME)


def merge_requests(ask, owner, name):
    x = project_of(ask, owner, name)
    title, links = titled(x, "Merge requests")
    return title, [links, request_page(ask, f"{REQUESTS} WHERE project_id = ?", x["id"])]


def issue(ask, owner, name, number):
    x = ask.row(f"{ISSUES} WHERE owner = ? AND name = ? AND number = ?", owner, name, number)
    path = f"{x['path']}/issues/{x['number']}"
    return x["title"], [
        html("<p>{} #{number} · <strong>{state}</strong> · {label} · opened on {day} by {} · "
             "assigned to {}</p>{}", link(f"{x['path']}/issues", "Issues"),
             person_link(x["author"]), person_link(x["assignee"]), paragraphs(x["body"]), **x),
        form(f"{path}/state", "Close issue" if x["state"] == "open" else "Reopen issue",
             kind="inline"),
        form(f"{path}/assign", "Assign", select("Assignee", "assignee", people(ask),
                                                x["assignee"]), kind="inline"),
        form(f"{path}/label", "Set label", select("Label", "label", LABELS, x["label"]),
             kind="inline"), remarks(ask, "issue", x["id"], path)]


def people(ask):
    return [("", "nobody"), *[row["username"] for row in ask.rows("SELECT username FROM person "
                                                                  "ORDER BY username")]]


def remarks(ask, kind, about, path):
    found, count, links = ask.paged("SELECT * FROM remark WHERE kind = ? AND about = ? "
                                    "ORDER BY id", kind, about)
    return [html("<h2>Comments ({})</h2>", count),
            bullets(html('<span class="small">{} on {day}</span><br>{body}',
                         person_link(y["author"]), **y) for y in found), links,
            form(f"{path}/comment", "Comment", area("Comment", "body"))]


def merge_request(ask, owner, name, number):
    x = ask.row(f"{REQUESTS} WHERE owner = ? AND name = ? AND number = ?", owner, name, number)
    path = f"{x['path']}/merge_requests/{x['number']}"
    return x["title"], [
        html("<p>{} !{number} · <strong>{state}</strong> · {branch} into main · opened on {day} "
             "by {} · reviewer: {}</p>", link(f"{x['path']}/merge_requests", "Merge requests"),
             person_link(x["author"]), person_link(x["reviewer"]), **x),
        [form(f"{path}/state", "Update", select("State", "state", ("merged", "closed")),
              kind="inline")] if x["state"] == "open" else None,
        form(f"{path}/assign", "Assign", select("Reviewer", "reviewer", people(ask),
                                                x["reviewer"]), kind="inline"),
        remarks(ask, "merge_request", x["id"], path)]


def commits(ask, owner, name):
    x = project_of(ask, owner, name)
    condition, values = ask.where(author="author = ?")
    found, count, pages = ask.paged(f"SELECT * FROM change WHERE project_id = ? AND {condition} "
                                    "ORDER BY day DESC, id DESC", x["id"], *values)
    title, links = titled(x, "Commits")
    return title, [links, form(ask.path, "Filter", field("Author", "author", ask.query.get(
        "author", "")), method="get", kind="inline"), html("<p>{} commits</p>", count),
        table(["Date", "Author", "Message", "Commit"], [
            [y["day"], person_link(y["author"]), y["message"], y["sha"]] for y in found]), pages]


def contributors(ask, owner, name):
    x = project_of(ask, owner, name)
    title, links = titled(x, "Contributors")
    return title, [links, table(["Author", "Name", "Commits"], [
        [person_link(y["author"]), y["name"], y["commits"]] for y in ask.rows(
            "SELECT author, person.name, count(*) AS commits FROM change JOIN person ON username "
            "= author WHERE project_id = ? GROUP BY author ORDER BY commits DESC, author",
            x["id"])])]


def members(ask, owner, name):
    x = project_of(ask, owner, name)
    title, links = titled(x, "Members")
    return title, [links, table(["Username", "Name", "Role"], [
        [person_link(y["username"]), y["name"], y["role"]] for y in ask.rows(
            "SELECT member_of.*, person.name FROM member_of JOIN person USING (username) WHERE "
            "project_id = ? ORDER BY member_of.id", x["id"])]),
        form(f"{x['path']}/members", "Invite", select("Username", "username", people(ask)[1:]),
             select("Role", "role", ROLES))]


def person(ask, username):
    x = ask.row("SELECT * FROM person WHERE username = ?", username)
    found = ask.rows("SELECT * FROM project WHERE owner = ? ORDER BY name LIMIT 60", username)
    return x["name"], [html("<p>{username} · {status}</p><h2>Projects</h2>", **x),
                       project_table(found)]


# ---- doing --------------------------------------------------------------------------------------

def star(ask, owner, name):
    ask.run("UPDATE project SET starred = 1 - starred WHERE owner = ? AND name = ?", owner, name)
    return f"/{owner}/{name}"


def project_form(ask):
    return "New project", form("/projects", "Create project", field("Project name", "name"),
                               area("Description", "description"),
                               select("Visibility", "visibility", VISIBILITY))


def create_project(ask):
    name = ask.text("name", 40)
    if not re.fullmatch("[A-Za-z0-9_.-]+", name):
        raise Problem(400, "name may have letters, digits, _, . and - only.")
    if not ask.run("INSERT OR IGNORE INTO project VALUES (NULL, ?, ?, ?, '', ?, ?, 0, 0, ?)", ME,
                   name, ask.text("description", 500, least=0),
                   ask.choice("visibility", VISIBILITY), name, TODAY):
        raise Problem(400, "You have a project of this name.")
    ask.run("INSERT INTO member_of VALUES (NULL, last_insert_rowid(), ?, 'Owner')", ME)
    return f"/{ME}/{name}"


def issue_form(ask, owner, name):
    x = project_of(ask, owner, name)
    return "New issue", form(f"{x['path']}/issues", "Create issue", field("Title", "title"),
                             area("Description", "body"),
                             select("Assignee", "assignee", people(ask)),
                             select("Label", "label", LABELS))


def create_issue(ask, owner, name):
    x = project_of(ask, owner, name)
    number = ask.value("SELECT coalesce(max(number), 0) + 1 FROM issue WHERE project_id = ?",
                       x["id"])
    ask.run("INSERT INTO issue VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, 'open', ?)", x["id"], number,
            ask.text("title", 200), ask.text("body", 5000, least=0), ME, chosen(ask, "assignee"),
            ask.choice("label", LABELS), TODAY)
    return f"{x['path']}/issues/{number}"


def chosen(ask, name):
    """A field of the form with somebody's username, or ""."""
    return ask.choice(name, [pair if isinstance(pair, str) else pair[0] for pair in people(ask)])


def change_issue(ask, owner, name, number, what):
    x = ask.row(f"{ISSUES} WHERE owner = ? AND name = ? AND number = ?", owner, name, number)
    if what == "state":
        ask.run("UPDATE issue SET state = ? WHERE id = ?",
                "closed" if x["state"] == "open" else "open", x["id"])
    elif what == "assign":
        ask.run("UPDATE issue SET assignee = ? WHERE id = ?", chosen(ask, "assignee"), x["id"])
    elif what == "label":
        ask.run("UPDATE issue SET label = ? WHERE id = ?", ask.choice("label", LABELS), x["id"])
    else:
        write_remark(ask, "issue", x["id"])
    return f"{x['path']}/issues/{number}"


def write_remark(ask, kind, about):
    ask.run("INSERT INTO remark VALUES (NULL, ?, ?, ?, ?, ?)", kind, about, ME, TODAY,
            ask.text("body", 2000))


def change_request(ask, owner, name, number, what):
    x = ask.row(f"{REQUESTS} WHERE owner = ? AND name = ? AND number = ?", owner, name, number)
    if what == "state":
        ask.run("UPDATE merge_request SET state = ? WHERE id = ? AND state = 'open'",
                ask.choice("state", ("merged", "closed")), x["id"])
    elif what == "assign":
        ask.run("UPDATE merge_request SET reviewer = ? WHERE id = ?", chosen(ask, "reviewer"),
                x["id"])
    else:
        write_remark(ask, "merge_request", x["id"])
    return f"{x['path']}/merge_requests/{number}"


def add_member(ask, owner, name):
    x = project_of(ask, owner, name)
    ask.run("INSERT OR REPLACE INTO member_of VALUES (NULL, ?, ?, ?)", x["id"], ask.value(
        "SELECT username FROM person WHERE username = ?", ask.text("username")),
        ask.choice("role", ROLES))
    return f"{x['path']}/members"


def edit_form(ask, owner, name):
    x = project_of(ask, owner, name)
    return f"Edit {name}", form(f"{x['path']}/edit", "Commit changes",
                                field("Description", "description", x["description"]),
                                area("README", "readme", x["readme"]))


def edit_project(ask, owner, name):
    x = project_of(ask, owner, name)
    ask.run("UPDATE project SET description = ?, readme = ? WHERE id = ?",
            ask.text("description", 500, least=0), ask.text("readme", 8000, least=0), x["id"])
    return x["path"]


def profile(ask):
    return "Edit profile", form("/profile", "Update profile", field("Status", "status", ask.value(
        "SELECT status FROM person WHERE username = ?", ME)))


def save_profile(ask):
    ask.run("UPDATE person SET status = ? WHERE username = ?", ask.text("status", 100, least=0),
            ME)
    return f"/{ME}"


P = "/([\\w.-]+)/([\\w.-]+)"
ROUTES = [
    ("GET", "/", home), ("GET", "/explore", explore), ("GET", "/dashboard/issues", my_issues),
    ("GET", "/dashboard/merge_requests", my_requests), ("GET", "/projects/new", project_form),
    ("POST", "/projects", create_project), ("GET", "/profile", profile),
    ("POST", "/profile", save_profile), ("GET", "/(\\w+)", person), ("GET", P, project),
    ("POST", f"{P}/star", star), ("GET", f"{P}/issues", issues),
    ("GET", f"{P}/issues/new", issue_form), ("POST", f"{P}/issues", create_issue),
    ("GET", f"{P}/issues/(\\d+)", issue),
    ("POST", f"{P}/issues/(\\d+)/(state|assign|label|comment)", change_issue),
    ("GET", f"{P}/merge_requests", merge_requests),
    ("GET", f"{P}/merge_requests/(\\d+)", merge_request),
    ("POST", f"{P}/merge_requests/(\\d+)/(state|assign|comment)", change_request),
    ("GET", f"{P}/commits", commits), ("GET", f"{P}/contributors", contributors),
    ("GET", f"{P}/members", members), ("POST", f"{P}/members", add_member),
    ("GET", f"{P}/edit", edit_form), ("POST", f"{P}/edit", edit_project),
]
