"""Commons, http://reddit.com: a forum, where nora_w is logged in.

Pages, and what their forms send:
    GET  /?sort=&page=                  posts of all forums; sort: top, new, comments
    GET  /forums                        all forums
    GET  /f/books?sort=&page=           one of them     POST /f/books/subscribe: on or off
    GET  /f/books/12                    a post and its comments
    POST /f/books/12/comment  body
    POST /f/books/12/reply    body, parent (a comment's id)
    POST /f/books/12/vote     value: 1 or -1; the same once more takes it back
    POST /comment/7/vote      value
    GET  /f/books/12/edit               POST /f/books/12/edit: title, body  (of one's own)
    POST /f/books/12/delete
    GET  /submit/books                  POST /submit: forum, title, body
    GET  /create_forum                  POST /create_forum: name, title, description
    GET  /user/nora_w                   bio, posts, comments
    GET  /edit_biography                POST /edit_biography: bio
    GET  /search?q=&page=               each word is in title or text

Tables:
    forum(name, title, description, subscribed)
    post(id, forum, author, day, title, body, score, mine)
        mine: nora_w's vote, 1, 0 or -1; what is shown as points is score + mine
    comment(id, post_id, parent, author, day, body, score, mine)        parent: 0, or a comment's id
    member(name, bio, joined)
    listed(id, forum, author, day, title, body, score, mine, points, comments)     a view of posts
What is asked about: who wrote, the best post or comment, counts of comments and posts, points; what
is done: every form above.
"""
from envs.web import words
from envs.web.pages import (TODAY, Field, Filter, Form, act, area, bullets, form_page, heading,
                            html, link, listing, number, paragraphs, select, table)

NAME, COLOUR, ABOUT, ME = "Commons", "#7a2e2e", "a forum", "nora_w"
SORTS = {"top": ("Top", "points DESC"), "new": ("New", "day DESC"),
         "comments": ("Most commented", "comments DESC")}
SCHEMA = """
CREATE TABLE forum(name TEXT PRIMARY KEY, title TEXT, description TEXT, subscribed INT);
CREATE TABLE post(id INTEGER PRIMARY KEY, forum TEXT, author TEXT, day TEXT, title TEXT, body TEXT,
    score INT, mine INT);
CREATE TABLE comment(id INTEGER PRIMARY KEY, post_id INT, parent INT, author TEXT, day TEXT,
    body TEXT, score INT, mine INT);
CREATE INDEX comment_post ON comment(post_id);
CREATE TABLE member(name TEXT PRIMARY KEY, bio TEXT, joined TEXT);
CREATE VIEW listed AS SELECT post.*, score + mine AS points,
    (SELECT count(*) FROM comment WHERE post_id = post.id) AS comments FROM post;
"""
VARY = ("UPDATE post SET score = 1 + LUCK % 400", "UPDATE comment SET score = LUCK % 60 - 9",
        "DELETE FROM comment WHERE LUCK % 3 = 0",
        "UPDATE comment SET parent = 0 WHERE parent NOT IN (SELECT id FROM comment)")


def fill(db, rng):
    for name in (ME, *words.HANDLES):
        words.add(db, "member", name, rng.choice(words.BIOS), words.day(rng, 2019, 2021))
    posts = []
    for name, (title, description, lines) in words.FORUMS.items():
        words.add(db, "forum", name, title, description, rng.random() < 0.4)
        posts += [(name, *line) for line in words.lines_of(lines)]
    rng.shuffle(posts)
    for key, (name, title, body) in enumerate(posts, 1):
        author, day = rng.choice(words.HANDLES), words.day(rng, 2022, 2023)
        words.add(db, "post", key, name, ME if key % 20 == 0 else author, day, title, body, 0, 0)
        for text in rng.sample(words.COMMENTS, rng.randint(3, 9)):
            above = [row[0] for row in db.execute("SELECT id FROM comment WHERE post_id = ? AND "
                                                  "parent = 0", (key,))]
            words.add(db, "comment", None, key, rng.choice([0, 0, *above]),
                      rng.choice((ME, *words.HANDLES)),
                      rng.choice((day, max(day, "2023-05-20"), TODAY)), text, 0, 0)


# ---- forms --------------------------------------------------------------------------------------

SEARCH = Form("Search", Field("Search", "q"), inline=True)
TITLE, BODY = Field("Title", "title"), area("Body", "body", most=5000, least=0)
SUBMIT = Form("Create submission", TITLE, BODY,
              select("Forum", "forum", "SELECT name FROM forum ORDER BY name LIMIT 200"))
EDIT, DELETE = Form("Save", TITLE, BODY), Form("Delete")
COMMENT = Form("Post", area("Comment", "body"))
REPLY = Form("Reply", number("parent"), Field("Reply", "body", most=2000), inline=True)
VOTE = Form("Upvote", number("value", -1, 1), inline=True)
SUBSCRIBE = Form("Subscribe", inline=True)
FORUM = Form("Create forum", Field("Name", "name", most=30), Field("Title", "title"),
             area("Description", "description"))
BIO = Form("Save", area("Biography", "bio", least=0))


# ---- pages --------------------------------------------------------------------------------------

def bar(ask):
    return [link("/forums", "Forums"), link("/submit/books", "Submit"),
            link(f"/user/{ME}", ME), link("/edit_biography", "Edit biography"),
            SEARCH.show(ask, "/search", ask.query, "get")]


def front(ask):
    return "All posts", post_list(ask, "1")


def post_list(ask, condition, *values, filters=()):
    return listing(ask, f"SELECT * FROM listed WHERE {condition} AND FILTERS ORDER", lambda found: [
        html('<article><h2>{}</h2><p class="small">{points} points · Submitted by {} in {} · {day}'
             ' · {comments} comments</p></article>', post_link(x), member_link(x["author"]),
             link(f"/f/{x['forum']}", x["forum"]), **x) for x in found], *filters, given=values,
        sorts=SORTS, per_page=15)


def post_link(x):
    return link(f"/f/{x['forum']}/{x['id']}", x["title"])


def member_link(name):
    return link(f"/user/{name}", name)


def forums(ask):
    return "Forums", [html("<p>{}</p>", link("/create_forum", "Create new forum")), listing(
        ask, "SELECT forum.*, count(post.id) AS posts FROM forum LEFT JOIN post ON forum = name "
        "GROUP BY name ORDER BY name", lambda found: table(
            ["Forum", "Title", "Description", "Posts", ""],
            [[link(f"/f/{x['name']}", x["name"]), x["title"], x["description"], x["posts"],
              "subscribed" if x["subscribed"] else ""] for x in found]))]


def forum(ask, name):
    x = ask.row("SELECT * FROM forum WHERE name = ?", name)
    return x["title"], [
        html("<p>{}</p>", x["description"]),
        SUBSCRIBE.show(ask, f"/f/{name}/subscribe",
                       button="Unsubscribe" if x["subscribed"] else "Subscribe"),
        link(f"/submit/{name}", "Submit a post"), post_list(ask, "forum = ?", name)]


def post(ask, name, key):
    x = ask.row("SELECT * FROM listed WHERE id = ? AND forum = ?", key, name)
    path = f"/f/{name}/{x['id']}"
    return x["title"], [
        html('<p class="small">{points} points · Submitted by {} in {} · {day}</p>{}',
             member_link(x["author"]), link(f"/f/{name}", name), paragraphs(x["body"]), **x),
        votes(ask, f"{path}/vote", x["mine"]),
        [link(f"{path}/edit", "Edit"), DELETE.show(ask, f"{path}/delete")]
        if x["author"] == ME else None, COMMENT.show(ask, f"{path}/comment"), heading("Comments"),
        listing(ask, "SELECT *, score + mine AS points FROM comment WHERE post_id = ? ORDER BY "
                "CASE parent WHEN 0 THEN id ELSE parent END, id",
                lambda found: [comment(ask, path, y) for y in found], given=[key], per_page=40)]


def comment(ask, path, y):
    text = html('<p class="small">{} wrote on {day} · {points} points</p>{}{}',
                member_link(y["author"]), paragraphs(y["body"]),
                votes(ask, f"/comment/{y['id']}/vote", y["mine"]), **y)
    return html("<article><blockquote>{}</blockquote></article>", text) if y["parent"] else html(
        "<article>{}{}</article>", text, REPLY.show(ask, f"{path}/reply", dict(parent=y["id"])))


def votes(ask, action, mine):
    return [VOTE.show(ask, action, dict(value=value),
                      button=f"Retract {word.lower()}" if mine == value else word)
            for value, word in ((1, "Upvote"), (-1, "Downvote"))]


def member(ask, name):
    x = ask.row("SELECT * FROM member WHERE name = ?", name)
    comments = ask.rows("SELECT comment.body, post.* FROM comment JOIN post ON post.id = post_id "
                        "WHERE comment.author = ? ORDER BY comment.id DESC LIMIT 20", name)
    return name, [heading("Biography"), paragraphs(x["bio"]),
                  html("<p>Member since {}</p>", x["joined"]),
                  heading("Posts"), post_list(ask, "author = ?", name), heading("Comments"),
                  bullets(html("{} on {}", y[0], post_link(y)) for y in comments)]


def search(ask):
    return f"Search: {ask.query.get('q', '')}", post_list(
        ask, "1", filters=[Filter("Words", "q", "title || ' ' || body")])


VOTED = "SET mine = CASE mine WHEN :value THEN 0 ELSE :value END WHERE id ="
OWN = f"author = '{ME}' AND forum = :a AND id = :b"
POST, BACK = "/f/(\\w+)/(\\d+)", "/f/{0}/{1}"
ROUTES = [
    ("GET", "/", front), ("GET", "/forums", forums), ("GET", "/f/(\\w+)", forum),
    ("GET", POST, post), ("GET", "/user/(\\w+)", member), ("GET", "/search", search),
    ("POST", "/f/(\\w+)/subscribe", act(
        SUBSCRIBE, "/f/{0}", "UPDATE forum SET subscribed = 1 - subscribed WHERE name = :a")),
    ("POST", f"{POST}/comment", act(
        COMMENT, BACK, f"INSERT INTO comment SELECT NULL, id, 0, '{ME}', :today, :body, 1, 0 "
        "FROM post WHERE forum = :a AND id = :b")),
    ("POST", f"{POST}/reply", act(
        REPLY, BACK, f"INSERT INTO comment SELECT NULL, post_id, id, '{ME}', :today, :body, 1, 0 "
        "FROM comment WHERE id = :parent AND post_id = :b AND parent = 0")),
    ("POST", f"{POST}/vote", act(VOTE, BACK, f"UPDATE post {VOTED} :b")),
    ("POST", "/comment/(\\d+)/vote", act(VOTE, "/comment/{0}", f"UPDATE comment {VOTED} :a")),
    ("GET", "/comment/(\\d+)", lambda ask, key: "/f/{forum}/{id}".format(**ask.row(
        "SELECT post.* FROM comment JOIN post ON post.id = post_id WHERE comment.id = ?", key))),
    ("GET", f"{POST}/edit", form_page("Edit submission", EDIT, f"{BACK}/edit",
                                      f"SELECT * FROM post WHERE {OWN}")),
    ("POST", f"{POST}/edit", act(
        EDIT, BACK, f"UPDATE post SET title = :title, body = :body WHERE {OWN}")),
    ("POST", f"{POST}/delete", act(
        DELETE, "/f/{0}", f"DELETE FROM post WHERE {OWN}",
        "DELETE FROM comment WHERE post_id NOT IN (SELECT id FROM post)")),
    ("GET", "/submit/(\\w+)", form_page("Create submission", SUBMIT, "/submit",
                                        "SELECT :a AS forum")),
    ("POST", "/submit", act(
        SUBMIT, "/f/{forum}/{new}", f"INSERT INTO post VALUES (NULL, :forum, '{ME}', :today, "
        ":title, :body, 1, 0)")),
    ("GET", "/create_forum", form_page("Create new forum", FORUM, "/create_forum")),
    ("POST", "/create_forum", act(
        FORUM, "/f/{name}", "INSERT OR IGNORE INTO forum SELECT :name, :title, :description, 1 "
        "WHERE NOT :name GLOB '*[^A-Za-z0-9_]*'")),
    ("GET", "/edit_biography", form_page("Edit biography", BIO, "/edit_biography",
                                         f"SELECT bio FROM member WHERE name = '{ME}'")),
    ("POST", "/edit_biography", act(BIO, f"/user/{ME}",
                                    f"UPDATE member SET bio = :bio WHERE name = '{ME}'")),
]
