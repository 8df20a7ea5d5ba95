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
from envs.web.pages import (Field, Filter, Form, act, area, bullets, form_page, heading, html, link,
                            listing, paragraphs, select, table)

NAME, COLOUR, ABOUT, ME = "Gitbarn", "#3b3560", "a code host", "nwhitlock"
LABELS = ("bug", "feature", "documentation", "help wanted")
ROLES = ("Guest", "Developer", "Maintainer", "Owner")
SORTS = {"stars": ("Most stars", "stars + starred DESC"), "name": ("Name", "name")}
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
    names = {"".join((name[0], *name.split()[1:])).lower(): name
             for name in ("Nora Whitlock", *words.DEVELOPERS)}
    for username, name in names.items():
        words.add(db, "person", username, name, "")
    everyone, others = list(names), list(names)[1:]
    for key, (name, language, description, parts) in enumerate(words.PROJECTS, 1):
        owner, parts = ME if key % 4 == 1 else rng.choice(others), parts.split(", ")
        team = [owner, *rng.sample([name for name in everyone if name != owner], 4)]
        words.add(db, "project", key, owner, name, description, language, "Public",
                  f"{name}\n{description}.\nInstall it, then run {name} --help.\n"
                  f"The main parts are: {', '.join(parts)}.", 0, 0, words.day(rng, 2020, 2021))
        for username in team:
            words.add(db, "member_of", None, key, username,
                      "Owner" if username == owner else rng.choice(ROLES[:3]))
        for k, (title, label) in enumerate(rng.sample(words.PROBLEMS, rng.randint(6, 9)), 1):
            words.add(db, "issue", None, key, k, title.format(part=rng.choice(parts)),
                      rng.choice(words.DETAILS), rng.choice(everyone), rng.choice([*team, ""]),
                      label, "", words.day(rng, 2022, 2023))
        for k, title in enumerate(rng.sample(words.CHANGES, rng.randint(3, 5)), 1):
            title = title.format(part=rng.choice(parts))
            words.add(db, "merge_request", None, key, k, title,
                      re.sub(r"\W+", "-", title.lower()), rng.choice(team),
                      rng.choice([*team, ME]), "", words.day(rng, 2022, 2023))
        for day in sorted(words.day(rng, 2022, 2023) for _ in range(rng.randint(25, 40))):
            words.add(db, "change", None, key, f"{rng.getrandbits(32):08x}", rng.choice(team),
                      day, rng.choice(words.CHANGES).format(part=rng.choice(parts)))
    for kind in ("issue", "merge_request"):
        for (about,) in db.execute(f"SELECT id FROM {kind}").fetchall():
            for text in rng.sample(words.REMARKS, rng.randint(0, 2)):
                words.add(db, "remark", None, kind, about, rng.choice(everyone), "2023-05-30",
                          text)


# ---- forms --------------------------------------------------------------------------------------

PEOPLE = "SELECT username FROM person ORDER BY username"
NOBODY = "SELECT '' UNION SELECT username FROM person"
TEXT, LABEL = area("Description", "body", 5000, least=0), select("Label", "label", LABELS)
ASSIGNEE = select("Assignee", "assignee", NOBODY)
ABOUT_IT = Field("Description", "description", least=0, most=500)
ISSUE = Form("Create issue", Field("Title", "title"), TEXT, ASSIGNEE, LABEL)
CLOSE, ASSIGN = Form("Close issue", inline=True), Form("Assign", ASSIGNEE, inline=True)
TAG, COMMENT = Form("Set label", LABEL, inline=True), Form("Comment", area("Comment", "body"))
REVIEW = Form("Assign", select("Reviewer", "reviewer", NOBODY), inline=True)
MERGE = Form("Update", select("State", "state", ("merged", "closed")), inline=True)
INVITE = Form("Invite", select("Username", "username", PEOPLE), select("Role", "role", ROLES))
PROJECT = Form("Create project", Field("Project name", "name", most=40), ABOUT_IT,
               select("Visibility", "visibility", ("Private", "Internal", "Public")))
EDIT = Form("Commit changes", ABOUT_IT, area("README", "readme", 8000, least=0))
STAR = Form("Star", inline=True)
PROFILE = Form("Update profile", Field("Status", "status", least=0))


# ---- pages --------------------------------------------------------------------------------------

def bar(ask):
    return [link("/explore", "Explore"), link("/dashboard/issues", "Issues"),
            link("/dashboard/merge_requests", "Merge requests"),
            link("/projects/new", "New project"), link(f"/{ME}", ME), link("/profile", "Profile")]


def home(ask):
    return "Projects", [
        heading("Yours"), project_table(ask.rows(
            "SELECT project.* FROM project JOIN member_of ON project_id = project.id "
            "WHERE username = ? ORDER BY name LIMIT 60", ME)),
        heading("Starred"), project_table(ask.rows(
            "SELECT * FROM project WHERE starred ORDER BY name LIMIT 60"))]


def project_table(found):
    return table(["Project", "Description", "Language", "Stars"], [
        [link(f"/{x['owner']}/{x['name']}", f"{x['owner']} / {x['name']}"), x["description"],
         x["language"], x["stars"] + x["starred"]] for x in found])


def explore(ask):
    return "Explore projects", listing(
        ask, "SELECT * FROM project WHERE FILTERS ORDER", project_table,
        Filter("Search", "q", "name || ' ' || description || ' ' || language"), sorts=SORTS)


def of_project(make):
    """The page function of one of a project's pages: make(ask, project) -> (title, markup)."""
    def page(ask, owner, name):
        x = ask.row(f"SELECT *, {PATH} AS path FROM project WHERE owner = ? AND name = ?", owner,
                    name)
        title, body = make(ask, x)
        return f"{title} · {owner} / {name}", [bullets([
            link(x["path"] + path, text) for path, text in (
                ("", "Project"), ("/issues", "Issues"), ("/merge_requests", "Merge requests"),
                ("/commits", "Commits"), ("/contributors", "Contributors"),
                ("/members", "Members"), ("/edit", "Edit README"))], "row"), body]
    return page


def project(ask, x):
    return "Project", [
        html("<p>{description}</p><p>{language} · {visibility} · created on {created} · {} stars"
             "</p>", x["stars"] + x["starred"], **x),
        STAR.show(ask, f"{x['path']}/star", button="Unstar" if x["starred"] else "Star"),
        heading("README"), paragraphs(x["readme"])]


def person_link(username):
    return link(f"/{username}", username) if username else "nobody"


PATH = "'/' || owner || '/' || name"
ISSUES = (f"SELECT issue.*, {PATH} || '/issues/' || number AS path FROM issue "
          "JOIN project ON project.id = project_id")
REQUESTS = ISSUES.replace("issue", "merge_request")
ISSUE_FILTERS = (Filter("State", "state", "state = ?", ("open", "closed")),
                 Filter("Label", "label", "label = ?", LABELS),
                 Filter("Author", "author", "author = ?"),
                 Filter("Assignee", "assignee", "assignee = ?"), Filter("Search", "q", "title"))
STATE = Filter("State", "state", "state = ?", ("open", "merged", "closed"))
NEWEST = "FILTERS ORDER BY day DESC, number"


def issue_table(found):
    return table(["Title", "State", "Label", "Author", "Assignee", "Created"], [
        [link(x["path"], x["title"]), x["state"], x["label"], person_link(x["author"]),
         person_link(x["assignee"]), x["day"]] for x in found])


def request_table(found):
    return table(["Title", "State", "Author", "Reviewer", "Created"], [
        [link(x["path"], x["title"]), x["state"], person_link(x["author"]),
         person_link(x["reviewer"]), x["day"]] for x in found])


def my_issues(ask):
    return "Issues assigned to you", listing(
        ask, f"{ISSUES} WHERE assignee = ? AND {NEWEST}", issue_table, *ISSUE_FILTERS, given=[ME])


def my_requests(ask):
    return "Merge requests to review", listing(
        ask, f"{REQUESTS} WHERE reviewer = ? AND {NEWEST}", request_table, STATE, given=[ME])


def issues(ask, x):
    return "Issues", [html("<p>{}</p>", link(f"{x['path']}/issues/new", "New issue")), listing(
        ask, f"{ISSUES} WHERE project_id = ? AND {NEWEST}", issue_table, *ISSUE_FILTERS,
        given=[x["id"]])]


def merge_requests(ask, x):
    return "Merge requests", listing(
        ask, f"{REQUESTS} WHERE project_id = ? AND {NEWEST}", request_table, STATE,
        given=[x["id"]])


def issue(ask, owner, name, key):
    x = ask.row(f"{ISSUES} WHERE owner = ? AND name = ? AND number = ?", owner, name, key)
    return x["title"], [
        html("<p>{} · Issue #{number} · <strong>{state}</strong> · {label} · opened on {day} by {} "
             "· assigned to {}</p>{}", link(f"/{owner}/{name}", f"{owner} / {name}"),
             person_link(x["author"]), person_link(x["assignee"]), paragraphs(x["body"]), **x),
        CLOSE.show(ask, f"{x['path']}/state",
                   button="Close issue" if x["state"] == "open" else "Reopen issue"),
        ASSIGN.show(ask, f"{x['path']}/assign", x), TAG.show(ask, f"{x['path']}/label", x),
        remarks(ask, "issue", x)]


def merge_request(ask, owner, name, key):
    x = ask.row(f"{REQUESTS} WHERE owner = ? AND name = ? AND number = ?", owner, name, key)
    return x["title"], [
        html("<p>{} · Merge request !{number} · <strong>{state}</strong> · {branch} into main · "
             "opened on {day} by {} · reviewer: {}</p>", link(f"/{owner}/{name}",
                                                              f"{owner} / {name}"),
             person_link(x["author"]), person_link(x["reviewer"]), **x),
        MERGE.show(ask, f"{x['path']}/state") if x["state"] == "open" else None,
        REVIEW.show(ask, f"{x['path']}/assign", x), remarks(ask, "merge_request", x)]


def remarks(ask, kind, x):
    return [heading("Comments"), listing(
        ask, "SELECT * FROM remark WHERE kind = ? AND about = ? ORDER BY id",
        lambda found: bullets(html('<span class="small">{} on {day}</span><br>{body}',
                                   person_link(y["author"]), **y) for y in found),
        given=[kind, x["id"]]), COMMENT.show(ask, f"{x['path']}/comment")]


def commits(ask, x):
    return "Commits", listing(
        ask, "SELECT * FROM change WHERE project_id = ? AND FILTERS ORDER BY day DESC, id DESC",
        lambda found: table(["Date", "Author", "Message", "Commit"], [
            [y["day"], person_link(y["author"]), y["message"], y["sha"]] for y in found]),
        Filter("Author", "author", "author = ?"), given=[x["id"]])


def contributors(ask, x):
    return "Contributors", table(["Author", "Name", "Commits"], [
        [person_link(y["author"]), y["name"], y["commits"]] for y in ask.rows(
            "SELECT author, person.name, count(*) AS commits FROM change JOIN person ON username "
            "= author WHERE project_id = ? GROUP BY author ORDER BY commits DESC, author",
            x["id"])])


def members(ask, x):
    return "Members", [table(["Username", "Name", "Role"], [
        [person_link(y["username"]), y["name"], y["role"]] for y in ask.rows(
            "SELECT member_of.*, person.name FROM member_of JOIN person USING (username) WHERE "
            "project_id = ? ORDER BY member_of.id", x["id"])]),
        INVITE.show(ask, f"{x['path']}/members")]


def person(ask, username):
    x = ask.row("SELECT * FROM person WHERE username = ?", username)
    return x["name"], [html("<p>{username} · {status}</p><h2>Projects</h2>", **x), project_table(
        ask.rows("SELECT * FROM project WHERE owner = ? ORDER BY name LIMIT 60", username))]


# In SQL: the project of the path /:a/:b, and its issue or merge request with the number :c.
THIS = "(SELECT id FROM project WHERE owner = :a AND name = :b)"
AT = f"WHERE project_id = {THIS} AND number = :c"
P, ITS = "/([\\w.-]+)/([\\w.-]+)", "/{0}/{1}"
ISSUE_AT, REQUEST_AT = f"{P}/issues/(\\d+)", f"{P}/merge_requests/(\\d+)"
BACK, REQUEST_BACK = f"{ITS}/issues/{{2}}", f"{ITS}/merge_requests/{{2}}"
ROUTES = [
    ("GET", "/", home), ("GET", "/explore", explore), ("GET", "/dashboard/issues", my_issues),
    ("GET", "/dashboard/merge_requests", my_requests),
    ("GET", "/projects/new", form_page("New project", PROJECT, "/projects")),
    ("POST", "/projects", act(
        PROJECT, f"/{ME}/{{name}}", f"INSERT OR IGNORE INTO project SELECT NULL, '{ME}', :name, "
        ":description, '', :visibility, :name, 0, 0, :today WHERE NOT :name GLOB "
        "'*[^A-Za-z0-9_.-]*'", "INSERT OR IGNORE INTO member_of SELECT NULL, id, owner, 'Owner' "
        f"FROM project WHERE owner = '{ME}' AND name = :name")),
    ("GET", "/profile", form_page("Edit profile", PROFILE, "/profile",
                                  f"SELECT * FROM person WHERE username = '{ME}'")),
    ("POST", "/profile", act(
        PROFILE, f"/{ME}", f"UPDATE person SET status = :status WHERE username = '{ME}'")),
    ("GET", "/(\\w+)", person), ("GET", P, of_project(project)),
    ("GET", f"{P}/issues", of_project(issues)), ("GET", f"{P}/commits", of_project(commits)),
    ("GET", f"{P}/merge_requests", of_project(merge_requests)),
    ("GET", f"{P}/contributors", of_project(contributors)),
    ("GET", f"{P}/members", of_project(members)), ("GET", ISSUE_AT, issue),
    ("GET", REQUEST_AT, merge_request),
    ("POST", f"{P}/star", act(
        STAR, ITS, f"UPDATE project SET starred = 1 - starred WHERE id = {THIS}")),
    ("POST", f"{P}/members", act(
        INVITE, f"{ITS}/members", "INSERT OR REPLACE INTO member_of SELECT NULL, id, :username, "
        f":role FROM project WHERE id = {THIS}")),
    ("GET", f"{P}/edit", form_page("Edit {1}", EDIT, f"{ITS}/edit",
                                   f"SELECT * FROM project WHERE id = {THIS}")),
    ("POST", f"{P}/edit", act(EDIT, ITS, "UPDATE project SET description = :description, "
                              f"readme = :readme WHERE id = {THIS}")),
    ("GET", f"{P}/issues/new", form_page("New issue", ISSUE, f"{ITS}/issues",
                                         f"SELECT 1 FROM project WHERE id = {THIS}")),
    ("POST", f"{P}/issues", act(
        ISSUE, "/-/issue/{new}", "INSERT INTO issue SELECT NULL, id, (SELECT 1 + "
        "coalesce(max(number), 0) FROM issue WHERE project_id = project.id), :title, :body, "
        f"'{ME}', :assignee, :label, 'open', :today FROM project WHERE id = {THIS}")),
    ("GET", "/-/issue/(\\d+)", lambda ask, key: ask.row(f"{ISSUES} WHERE issue.id = ?",
                                                         key)["path"]),
    ("POST", f"{ISSUE_AT}/state", act(
        CLOSE, BACK, "UPDATE issue SET state = CASE state WHEN 'open' THEN 'closed' ELSE 'open' "
        f"END {AT}")),
    ("POST", f"{ISSUE_AT}/assign", act(
        ASSIGN, BACK, f"UPDATE issue SET assignee = :assignee {AT}")),
    ("POST", f"{ISSUE_AT}/label", act(TAG, BACK, f"UPDATE issue SET label = :label {AT}")),
    ("POST", f"{ISSUE_AT}/comment", act(
        COMMENT, BACK, f"INSERT INTO remark SELECT NULL, 'issue', id, '{ME}', :today, :body "
        f"FROM issue {AT}")),
    ("POST", f"{REQUEST_AT}/state", act(
        MERGE, REQUEST_BACK, f"UPDATE merge_request SET state = :state {AT} AND state = 'open'")),
    ("POST", f"{REQUEST_AT}/assign", act(
        REVIEW, REQUEST_BACK, f"UPDATE merge_request SET reviewer = :reviewer {AT}")),
    ("POST", f"{REQUEST_AT}/comment", act(
        COMMENT, REQUEST_BACK, "INSERT INTO remark SELECT NULL, 'merge_request', id, "
        f"'{ME}', :today, :body FROM merge_request {AT}")),
]
