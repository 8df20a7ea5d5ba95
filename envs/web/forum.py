"""Commons, http://reddit.com: a forum, where nora_w is logged in.

Pages, and what their forms send:
    GET  /?sort=&page=                  posts of all forums; sort: top, new, comments
    GET  /forums                        all forums
    GET  /f/books?sort=&page=           one of them     POST /f/books/subscribe: on or off
    GET  /f/books/12                    a post and its comments
    POST /f/books/12/comment  body, parent (a comment's number, or "")
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
    View post_count(id, comments): how many comments a post has
What is asked about: who wrote, the best post or comment, counts of comments and posts, points; what
is done: every form above.
"""
from envs.web import words
from envs.web.pages import (TODAY, Problem, area, bullets, field, form, hidden, html, link,
                            paragraphs, select, table)

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
CREATE VIEW post_count AS SELECT id, (SELECT count(*) FROM comment WHERE post_id = post.id)
    AS comments FROM post;
CREATE VIEW listed AS SELECT post.*, score + mine AS points, comments
    FROM post JOIN post_count USING (id);
"""
VARY = ("UPDATE post SET score = 1 + LUCK % 400", "UPDATE comment SET score = LUCK % 60 - 9",
        "DELETE FROM comment WHERE LUCK % 3 = 0",
        "UPDATE comment SET parent = 0 WHERE parent NOT IN (SELECT id FROM comment)")


def fill(db, rng):
    db.executemany("INSERT INTO member VALUES (?, ?, ?)", [
        (name, rng.choice(words.BIOS), words.day(rng, 2019, 2021))
        for name in (ME, *words.HANDLES)])
    posts = []
    for name, (title, description, lines) in words.FORUMS.items():
        db.execute("INSERT INTO forum VALUES (?, ?, ?, ?)", (name, title, description,
                                                             rng.random() < 0.4))
        posts += [(name, *line) for line in words.lines_of(lines)]
    rng.shuffle(posts)
    for number, (name, title, body) in enumerate(posts, 1):
        author, day = rng.choice(words.HANDLES), words.day(rng, 2022, 2023)
        db.execute("INSERT INTO post VALUES (?, ?, ?, ?, ?, ?, 0, 0)", (
            number, name, ME if number % 20 == 0 else author, day, title, body))
        for text in rng.sample(words.COMMENTS, rng.randint(3, 9)):
            others = [row[0] for row in db.execute("SELECT id FROM comment WHERE post_id = ? AND "
                                                   "parent = 0", (number,))]
            db.execute("INSERT INTO comment VALUES (NULL, ?, ?, ?, ?, ?, 0, 0)", (
                number, rng.choice([0, 0, *others]), rng.choice((ME, *words.HANDLES)),
                rng.choice((day, max(day, "2023-05-20"), TODAY)), text))


# ---- looking ------------------------------------------------------------------------------------

def bar(ask):
    return [link("/forums", "Forums"), link("/submit/books", "Submit"),
            link(f"/user/{ME}", ME), link("/edit_biography", "Edit biography"),
            form("/search", "Search", field("Search", "q", ask.query.get("q", "")), method="get",
                 kind="inline")]


def front(ask):
    return "All posts", post_list(ask, "SELECT * FROM listed")


def post_list(ask, sql, *values):
    sort = ask.query.get("sort", "top")
    order = SORTS.get(sort, SORTS["top"])[1]
    found, count, links = ask.paged(f"{sql} ORDER BY {order}, id", *values, per_page=15)
    return [form(ask.path, "Sort", hidden("q", ask.query["q"]) if "q" in ask.query else None,
                 select("Sort by", "sort", [(key, SORTS[key][0]) for key in SORTS], sort),
                 method="get", kind="inline"), html("<p>{} posts</p>", count),
            [html('<article><h2>{}</h2><p class="small">{points} points · Submitted by {} in {} '
                  '· {day} · {}</p></article>',
                  link(f"/f/{x['forum']}/{x['id']}", x["title"]), member_link(x["author"]),
                  link(f"/f/{x['forum']}", x["forum"]), f"{x['comments']} comments", **x)
             for x in found], links]


def member_link(name):
    return link(f"/user/{name}", name)


def forums(ask):
    found = ask.rows("SELECT forum.*, count(post.id) AS posts FROM forum LEFT JOIN post "
                     "ON forum = name GROUP BY name ORDER BY name LIMIT 100")
    return "Forums", [
        html("<p>{}</p>", link("/create_forum", "Create new forum")),
        table(["Forum", "Title", "Description", "Posts", ""], [
            [link(f"/f/{x['name']}", x["name"]), x["title"], x["description"], x["posts"],
             "subscribed" if x["subscribed"] else ""] for x in found])]


def forum(ask, name):
    x = ask.row("SELECT * FROM forum WHERE name = ?", name)
    return x["title"], [
        html("<p>{}</p>", x["description"]),
        form(f"/f/{name}/subscribe", "Unsubscribe" if x["subscribed"] else "Subscribe",
             kind="inline"), link(f"/submit/{name}", "Submit a post"),
        post_list(ask, "SELECT * FROM listed WHERE forum = ?", name)]


def post(ask, name, number):
    x = ask.row("SELECT * FROM listed WHERE id = ? AND forum = ?", number, name)
    path = f"/f/{name}/{x['id']}"
    comments, count, links = ask.paged(
        "SELECT *, score + mine AS points FROM comment WHERE post_id = ? "
        "ORDER BY CASE parent WHEN 0 THEN id ELSE parent END, id", x["id"], per_page=40)
    own = [html("<p>{}</p>", link(f"{path}/edit", "Edit")),
           form(f"{path}/delete", "Delete")] if x["author"] == ME else None
    return x["title"], [
        html('<p class="small">{points} points · Submitted by {} in {} · {day}</p>{}',
             member_link(x["author"]), link(f"/f/{name}", name), paragraphs(x["body"]), **x),
        votes(f"{path}/vote", x["mine"]), own,
        form(f"{path}/comment", "Post", area("Comment", "body")),
        html("<h2>Comments ({})</h2>", count), [comment(path, y) for y in comments], links]


def comment(path, y):
    text = html('<p class="small">{} wrote on {day} · {points} points</p>{}',
                member_link(y["author"]), paragraphs(y["body"]), **y)
    return html("<article>{}{}</article>", html("<blockquote>{}</blockquote>", text)
                if y["parent"] else text, [
        votes(f"/comment/{y['id']}/vote", y["mine"]),
        form(f"{path}/comment", "Reply", hidden("parent", y["id"]), field("Reply", "body"),
             kind="inline") if not y["parent"] else None])


def votes(action, mine):
    return [form(action, "Retract upvote" if mine > 0 else "Upvote", hidden("value", 1),
                 kind="inline"),
            form(action, "Retract downvote" if mine < 0 else "Downvote", hidden("value", -1),
                 kind="inline")]


def member(ask, name):
    x = ask.row("SELECT * FROM member WHERE name = ?", name)
    comments = ask.rows("SELECT comment.*, title, forum FROM comment JOIN post ON post.id = "
                        "post_id WHERE comment.author = ? ORDER BY comment.id DESC LIMIT 20", name)
    return name, [html("<h2>Biography</h2>{}<p>Member since {}</p>", paragraphs(x["bio"]),
                       x["joined"]),
                  html("<h2>Posts</h2>"),
                  post_list(ask, "SELECT * FROM listed WHERE author = ?", name),
                  html("<h2>Comments</h2>"),
                  bullets(html("{} on {}", y["body"], link(f"/f/{y['forum']}/{y['post_id']}",
                                                           y["title"])) for y in comments)]


def search(ask):
    condition, values = ask.where(q="title || ' ' || body")
    return f"Search: {ask.query.get('q', '')}", post_list(
        ask, f"SELECT * FROM listed WHERE {condition}", *values)


# ---- doing --------------------------------------------------------------------------------------

def subscribe(ask, name):
    ask.run("UPDATE forum SET subscribed = 1 - subscribed WHERE name = ?", name)
    return f"/f/{name}"


def write_comment(ask, name, number):
    number = ask.value("SELECT id FROM post WHERE id = ? AND forum = ?", number, name)
    parent = ask.whole("parent", 1, 10**6) if ask.form.get("parent") else 0
    if parent:
        ask.value("SELECT id FROM comment WHERE id = ? AND post_id = ?", parent, number)
    ask.run("INSERT INTO comment VALUES (NULL, ?, ?, ?, ?, ?, 1, 0)", number, parent, ME, TODAY,
            ask.text("body", 2000))
    return f"/f/{name}/{number}"


def vote_post(ask, name, number):
    vote(ask, "UPDATE post SET mine = CASE mine WHEN ?1 THEN 0 ELSE ?1 END WHERE id = ?2", number)
    return f"/f/{name}/{number}"


def vote_comment(ask, number):
    x = ask.row("SELECT forum, post.id FROM comment JOIN post ON post.id = post_id "
                "WHERE comment.id = ?", number)
    vote(ask, "UPDATE comment SET mine = CASE mine WHEN ?1 THEN 0 ELSE ?1 END WHERE id = ?2",
         number)
    return f"/f/{x['forum']}/{x['id']}"


def vote(ask, sql, number):
    ask.run(sql, int(ask.choice("value", ("1", "-1"))), number)


def submit_form(ask, name):
    names = [row["name"] for row in ask.rows("SELECT name FROM forum ORDER BY name LIMIT 100")]
    return "Create submission", form("/submit", "Create submission", field("Title", "title"),
                                     area("Body", "body"), select("Forum", "forum", names, name))


def submit(ask):
    name = ask.value("SELECT name FROM forum WHERE name = ?", ask.form.get("forum", ""))
    ask.run("INSERT INTO post VALUES (NULL, ?, ?, ?, ?, ?, 1, 0)", name, ME, TODAY,
            ask.text("title", 200), ask.text("body", 5000, least=0))
    return f"/f/{name}/{ask.value('SELECT last_insert_rowid()')}"


def edit_form(ask, name, number):
    x = own_post(ask, name, number)
    return "Edit submission", form(f"/f/{name}/{number}/edit", "Save",
                                   field("Title", "title", x["title"]),
                                   area("Body", "body", x["body"]))


def own_post(ask, name, number):
    return ask.row("SELECT * FROM post WHERE id = ? AND forum = ? AND author = ?", number, name, ME)


def edit_post(ask, name, number):
    ask.run("UPDATE post SET title = ?, body = ? WHERE id = ?", ask.text("title", 200),
            ask.text("body", 5000, least=0), own_post(ask, name, number)["id"])
    return f"/f/{name}/{number}"


def delete_post(ask, name, number):
    number = own_post(ask, name, number)["id"]
    ask.run("DELETE FROM comment WHERE post_id = ?", number)
    ask.run("DELETE FROM post WHERE id = ?", number)
    return f"/f/{name}"


def forum_form(ask):
    return "Create new forum", form(
        "/create_forum", "Create forum", field("Name", "name"), field("Title", "title"),
        area("Description", "description"))


def create_forum(ask):
    name = ask.text("name", 30)
    if not name.isascii() or not name.replace("_", "a").isalnum():
        raise Problem(400, "name may have letters, digits and _ only.")
    if not ask.run("INSERT OR IGNORE INTO forum VALUES (?, ?, ?, 1)", name,
                   ask.text("title", 100), ask.text("description", 1000)):
        raise Problem(400, "There is a forum of this name.")
    return f"/f/{name}"


def bio_form(ask):
    return "Edit biography", form("/edit_biography", "Save", area("Biography", "bio", ask.value(
        "SELECT bio FROM member WHERE name = ?", ME)))


def save_bio(ask):
    ask.run("UPDATE member SET bio = ? WHERE name = ?", ask.text("bio", 1000, least=0), ME)
    return f"/user/{ME}"


POST = "/f/(\\w+)/(\\d+)"
ROUTES = [
    ("GET", "/", front), ("GET", "/forums", forums), ("GET", "/f/(\\w+)", forum),
    ("POST", "/f/(\\w+)/subscribe", subscribe), ("GET", POST, post),
    ("POST", POST + "/comment", write_comment), ("POST", POST + "/vote", vote_post),
    ("GET", POST + "/edit", edit_form), ("POST", POST + "/edit", edit_post),
    ("POST", POST + "/delete", delete_post), ("POST", "/comment/(\\d+)/vote", vote_comment),
    ("GET", "/submit/(\\w+)", submit_form), ("POST", "/submit", submit),
    ("GET", "/create_forum", forum_form), ("POST", "/create_forum", create_forum),
    ("GET", "/user/(\\w+)", member), ("GET", "/edit_biography", bio_form),
    ("POST", "/edit_biography", save_bio), ("GET", "/search", search),
]
