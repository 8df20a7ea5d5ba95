"""What the sites' content is made of. A line's fields stand between bars, its lists have commas."""


def lines_of(text):
    """[[field, ...], ...] of a table's lines."""
    return [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]


def add(db, table, *row):
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def people(rng, count):
    """So many different names."""
    return rng.sample([f"{first} {last}" for first in FIRST for last in LAST], count)


def address(rng):
    return f"{rng.randint(1, 180)} {rng.choice(STREETS)}"


def day(rng, first, last):
    """A day of these years; of 2023 only what lies before an episode's day."""
    year = rng.randint(first, last)
    return f"{year}-{rng.randint(1, 12 if year < 2023 else 5):02}-{rng.randint(1, 28):02}"


FIRST = ("Abel Alma Anton Beatriz Callum Chiara Dara Edwin Elif Esther Farah Felix Gwen Hanna "
         "Hector Ingrid Isaac Jamal Joanna Kofi Leila Linus Magda Marco Mei Naomi Oscar Petra "
         "Quentin Rafael Ruth Selim Tamara Theo Ursula Vera Wanda Yusuf Zoe").split()
LAST = ("Adler Baptiste Brooks Calder Dunne Eklund Farrow Gallo Hartmann Ibarra Jordan Kessler "
        "Lange Mbeki Nilsen Ortega Pryce Quist Renner Sandoval Tanaka Ulrich Vance Whitlock Yates "
        "Zeller").split()
STREETS = ("Alder Street|Bell Lane|Canal Road|Chestnut Avenue|Foundry Street|Garden Row|Harbor Way|"
           "Juniper Court|Linden Avenue|Market Street|Mill Road|Orchard Street|Park Lane|"
           "Quarry Road|River Street|School Lane|Station Road|Sycamore Drive|Union Street|"
           "Windmill Hill").split("|")

# ---- the shop -----------------------------------------------------------------------------------
# category | kind | dollars, from and to | an option and its values | what reviews speak of
GOODS = """
Kitchen | Ceramic Mug | 6 18 | Color: White, Blue, Sage | handle, glaze, size
Kitchen | Cast Iron Skillet | 24 60 | Size: 8 inch, 10 inch, 12 inch | handle, weight, coating
Kitchen | Chef's Knife | 30 95 | | blade, grip, balance
Kitchen | Electric Kettle | 25 70 | Color: Black, Steel, Cream | lid, spout, cord
Kitchen | Glass Storage Jar | 8 22 | Size: 1 pint, 1 quart, 2 quarts | lid, seal, glass
Electronics | Wireless Headphones | 35 180 | Color: Black, White, Navy | sound, battery, ear pads
Electronics | USB-C Charger | 12 45 | Power: 20 W, 45 W, 65 W | plug, cable, size
Electronics | Bluetooth Speaker | 20 120 | Color: Black, Red, Teal | bass, battery, strap
Electronics | Desk Lamp | 18 65 | Color: White, Black | switch, base, light
Electronics | Mechanical Keyboard | 45 150 | Switch: Red, Brown, Blue | keys, cable, noise
Clothing | Rain Jacket | 40 130 | Size: S, M, L, XL | zipper, hood, fit
Clothing | Wool Socks | 9 24 | Size: S, M, L | heel, wool, fit
Clothing | Running Shoes | 50 140 | Size: 7, 8, 9, 10, 11 | sole, laces, fit
Clothing | Canvas Backpack | 35 90 | Color: Olive, Grey, Rust | straps, zipper, pockets
Clothing | Knit Beanie | 10 28 | Color: Charcoal, Mustard, Pine | wool, fit, color
Garden | Pruning Shears | 14 40 | | blade, spring, grip
Garden | Watering Can | 12 36 | Color: Green, Copper | spout, handle, balance
Garden | Solar Path Lights | 20 55 | Pack: 4 lights, 8 lights | battery, light, stake
Garden | Raised Bed Kit | 60 160 | | boards, screws, instructions
Garden | Bird Feeder | 15 45 | Color: Red, Green | hook, lid, perch
Beauty | Face Moisturizer | 9 38 | Size: 50 ml, 100 ml | scent, pump, texture
Beauty | Hair Dryer | 25 110 | Color: Black, Rose | cord, noise, nozzle
Beauty | Shaving Brush | 12 42 | | bristles, handle, stand
Beauty | Lavender Bath Salt | 7 20 | Size: 250 g, 500 g | scent, bag, color
Beauty | Nail Care Set | 10 30 | | file, case, scissors
Toys | Wooden Train Set | 25 80 | | wheels, paint, magnets
Toys | 1000 Piece Puzzle | 12 26 | Motif: Harbor, Mountains, Market | pieces, print, box
Toys | Building Blocks | 18 60 | Pack: 100 pieces, 250 pieces | corners, colors, box
Toys | Plush Otter | 10 32 | Size: Small, Large | fur, seams, eyes
Toys | Card Game | 8 25 | | cards, rules, box
"""
BRANDS = ("Aldermoor Brightwell Cobalt&Co Dunmore Everly Fernhill Granite Halden Ironwood Juno "
          "Kestrel Larkspur").split()
DESCRIPTIONS = lines_of("""
Made to be used every day and to look good while it is. | A favorite of our own staff for years.
Designed by a small team and tested for two seasons. | Spare parts are available.
A plain, sturdy design. | Comes in a box made from recycled paper.
The second generation, improved after what customers told us. | Two years of warranty.
Simple to clean, simple to store, and hard to break. | Makes a good present, too.
""")
REVIEWS = {4: lines_of("""
Exactly what I hoped for | The {topic} could not be better. I use it nearly every day.
Would buy again | My sister recommended it because of the {topic}, and she was right.
Great value | For this price I expected less. The {topic} in particular surprised me.
Happy customer | Arrived a day early, well packed. I really like the {topic}.
Better than my old one | I compared three of them, and the {topic} decided it. No regrets.
"""), 3: lines_of("""
It is fine | Does what it should. Nothing special about the {topic}.
Good but not great | I like it on the whole, though the {topic} could be better.
Okay for the money | No complaints about the delivery. I had to get used to the {topic}.
"""), 2: lines_of("""
Disappointed | The {topic} gave up after two weeks. I am sending it back.
Not as described | I did not recognize the {topic} from the pictures. Poor quality.
Would not recommend | I wanted to like it, but there is a problem with the {topic}.
Save your money | Customer service was friendly, yet the {topic} never worked for me.
""")}       # by rating: 4 and more, 3, less

SEARCHES = ("mug|kettle|usb charger|wool socks|rain coat|bird feeder|gift for dad|puzzle 1000|"
            "desk lamp|headphones|knife set|bath salt|otter|running shoes size 12|solar lights|"
            "lunch box").split("|")       # what customers looked for
# ---- places: the shop's customers live here, the map shows them --------------------------------
# town | state | zip code | x and y on the map, in metres
TOWNS = [(town, state, code, *map(int, at.split())) for town, state, code, at in lines_of("""
Alderford | Vermont | 05910 | 0 0
Briar Falls | Vermont | 05922 | 14000 6000
Camden Ridge | New Hampshire | 03771 | 31000 -4000
Dunmere | New Hampshire | 03784 | 22000 17000
Easthaven | Maine | 04690 | 47000 9000
""")]

# ---- the forum ----------------------------------------------------------------------------------
# a community: title and description; its posts: title | text
FORUMS = {
    "books": ("Books", "What we read, and what we thought of it.", """
Which novel did you finish in a single day? | For me it was a slim one about a lighthouse keeper.
Libraries that lend more than books | Ours has sewing machines and a telescope. Does yours?
I reread my favorite from school and hated it | The hero is insufferable. Was I like that at 15?
Looking for quiet mysteries without murders | Something with letters, maps or a missing painting.
How do you organize your shelves? | I tried colors for a year and could not find anything.
Audiobooks count as reading, right? | My brother says no. I drive two hours a day and disagree.
Best translation of the Odyssey for a first reader | I would like verse, but nothing too stiff.
The ending of The Salt Road, spoilers inside | Did she stay or did she go? I read it twice.
Short story collections to carry on a train | Ten to twenty pages each would be perfect.
Our book club is stuck, please suggest something funny | Eight people, all tired of war novels."""),
    "cooking": ("Cooking", "Recipes, failures and questions from home kitchens.", """
My sourdough finally rose | The trick was a warmer shelf and a lot more patience.
What is your weeknight dinner under 20 minutes? | Mine is lentils with whatever is left over.
Cast iron: soap or no soap? | My grandmother used soap for fifty years and the pan still shines.
Too much dill in the garden | I have eaten it with potatoes for a week. Ideas are welcome.
How do I keep rice from sticking? | I rinse it, I measure it, and still there is a crust.
A knife for under 50 dollars that lasts | I only need one good one, no set.
Substitute for buttermilk in pancakes | Yogurt and milk worked, lemon did not.
Cooking for one without eating the same thing all week | Freezer tips are welcome.
The best soup for a cold | Mine has ginger, garlic and far too much pepper.
I burned the caramel again | Three pans so far. What am I doing wrong?"""),
    "space": ("Space", "News and pictures from above the air.", """
First picture of Saturn through my small telescope | The rings are tiny but they are there!
Why do rockets launch close to the equator? | I know it has to do with rotation. How much?
How to watch the meteors this August | A dark field, a blanket, and half an hour for your eyes.
The probe that would not die | It was built for 90 days and lasted 14 years.
Is a lunar base really cheaper than an orbital one? | I read both numbers this week.
What would you take on a one way trip to Mars? | I would take a guitar and a lot of spare strings.
Identifying a bright light in the west after sunset | It does not twinkle. Venus?
Books on the history of rocketry | I look for something with engineers, not only heroes.
Radio astronomy with an old satellite dish | I could hear the sun. Instructions inside.
Naming rights for asteroids | How does one propose a name, and who decides?"""),
    "gardening": ("Gardening", "Soil, seeds and stubborn slugs.", """
Slugs ate all my lettuce | Copper tape did nothing. What works for you?
When do you plant tomatoes outside? | We had frost in May last year, so I am careful now.
A hedge that birds like | About two metres high, sunny side, poor soil.
My compost smells | I added grass, peels and leaves. Too wet?
Which tools did you stop using? | I have not touched the leaf blower in years.
Raised beds: how deep is deep enough? | Carrots are the goal, the soil below is clay.
Rain barrel set up for under 40 dollars | Pictures and a list of parts are below.
Roses with black spots | I do not want to spray. Is there a hardy kind?
Seeds swap for the north east | I have beans, dill and far too many marigolds.
Moles: live with them or not? | The lawn looks like the moon, but the beds are fine."""),
    "bicycles": ("Bicycles", "Riding, repairing, commuting.", """
My chain slips under load | New chain, old cassette. Is that the reason?
Commuting in the rain | Fenders, a cape, and dry socks in a drawer at work.
How tight should a helmet be? | Mine moves when I shake my head.
The best touring route along a river | Flat, with a campsite every 40 miles or so.
Tubeless or not for a city bike? | I get a flat twice a year and wonder about the fuss.
A bike for a tall beginner | I am 6 foot 5 and everything feels like a toy.
Which lock survived your city? | Two of mine were cut within a year.
First century ride done | 101 miles, one flat, four bananas.
Squeaky disc brakes after winter | Cleaning did not help. New pads?
Taking a bike on the train | Which lines ask for a reservation?"""),
    "boardgames": ("Board Games", "For evenings around a table.", """
Games that work for two and for six | We never know who comes on Fridays.
My nephew beat me at chess | He is seven. I blame the coffee.
Cooperative games without one loud leader | The same person always plans for everyone.
How do you store cards that get used a lot? | Sleeves feel wrong to me.
A game for people who hate games | It must be explained in five minutes.
Lost pieces: where do you get new ones? | I need one blue ship and two grey houses.
The longest game you ever finished | Ours took two weekends and one friendship.
Solo games for a rainy week | I like maps and puzzles, no fighting.
House rules that made a game better | We never pay taxes on the free parking.
Teaching rules without losing the room | I start with how one wins. And you?"""),
}
COMMENTS = """I had the same problem last year and solved it by waiting.
This is the best advice I have read here in a while.
I disagree, but I see your point.
Can you post a picture?
My neighbor swears by it. I never dared to try.
Thanks, I will try that this weekend!
It depends on where you live, honestly.
We talked about this a month ago, search for it.
That made me laugh out loud at work.
Do not listen to the others. Do what you enjoy.
I tried it twice and it never worked for me.
Saved for later. Please tell us how it went.
Is there a cheaper way to do this?
I wish I had known that ten years ago.
Came here to say exactly this.
Careful, this can go wrong quickly.
Ask at a small shop, they usually know.
Great post. The second part surprised me.""".splitlines()
HANDLES = ("old_kettle quietmango riverine paperplane77 mosslight tinyharbor grumpyheron "
           "nightbaker sevenspoons foxglove_ littlecomet brasskey wandering_elm salty_pretzel "
           "copperowl lateforlunch").split()
BIOS = ("I read more than I write.|Amateur at everything.|Here for the pictures.|Teacher by day.|"
        "Two cats, one garden.|Still learning.").split("|")

# ---- the code host ------------------------------------------------------------------------------
# project | language | description | its parts, of which issues, merge requests and commits speak
PROJECTS = lines_of("""
tidewatch | Python | Tide tables and alerts for small harbors | forecast, chart, alert mail, import
paperclip | Go | Keeps notes and attachments in one searchable file | index, search, export, viewer
greenhouse | Python | Reads sensors and opens windows | sensor, schedule, dashboard, relay
marble | Rust | A small physics engine for 2D games | collision, solver, demo, contact cache
lantern | TypeScript | A slide show that runs in any browser | theme, timer, export, keyboard map
quillpost | Ruby | Mailing lists without the pain | archive, bounce handler, digest, signup form
cartograph | Python | Draws maps from open data | tile loader, label layer, legend, projection
hushbot | Go | A chat bot that says very little | parser, reminder, login, plugin
breadbox | JavaScript | Recipes that scale and convert units | unit table, list, timer, import
sundial | C | A calendar library with no dependencies | zone table, recurrence, parser, era
wayfarer | Kotlin | Offline hiking routes | elevation, track, download, compass
stitch | Python | Joins photographs into panoramas | matching, blending, preview, command line
""")
PROBLEMS = lines_of("""
The {part} crashes on empty input | bug
The {part} is slow with more than 10,000 entries | bug
Wrong result in the {part} after midnight | bug
Document the {part} | documentation
The example for the {part} is out of date | documentation
The {part} ignores the language setting | bug
Let users switch off the {part} | feature
Flaky test in the {part} | help wanted
The {part} leaks memory | help wanted
Dark mode for the {part} | feature
The {part} fails behind a proxy | bug
""")
DETAILS = """I can reproduce this with the latest release. Happy to help with a patch.
It worked before the last update. A log is below; the interesting part is at the end.
Several people asked for this in the chat. It should not be hard.
Steps: open it, wait a minute, look. Expected: nothing happens.
See also the discussion in the old tracker.""".splitlines()
CHANGES = """Fix rounding in the {part}
Add tests for the {part}
Rewrite the {part} without global state
Update the docs of the {part}
Make the {part} twice as fast
Remove dead code from the {part}
Handle timeouts in the {part}
Rename options of the {part}
Pin versions needed by the {part}
Check inputs of the {part}""".splitlines()
REMARKS = """I can look into this next week.
Could you add a test for it?
Works for me on two machines.
This looks good, only one small question about naming.
Please rebase, the build was broken yesterday.
Thanks, that was quick!""".splitlines()
DEVELOPERS = ("Ada Lindqvist|Ben Okoro|Carla Mendes|Dev Raman|Eva Horak|Finn Carlsen|Gita Rao|"
              "Hugo Perrin|Iris Tanaka|Jonas Weber").split("|")

# ---- the map ------------------------------------------------------------------------------------
# kind | opening hours | what the places of this kind are called, one for each of TOWNS
PLACES = lines_of("""
Cafe | 07:00-18:00 | Lantern Coffee, Daily Grind, Cafe Marigold, Old Mill Espresso, Harbor Beans
Restaurant | 11:30-22:00 | Trattoria Bella, Copper Pot, Golden Lotus, Ridge Grill, Lobster House
Museum | 10:00-17:00 | Clockwork Museum, Falls Art Museum, Mining Museum, Toy Museum, Whale Museum
Pharmacy | 08:00-20:00 | Alder Pharmacy, Falls Drugs, Camden Pharmacy, Corner Chemist, East Pharmacy
Hotel | 00:00-24:00 | Hotel Bellevue, Riverside Inn, Summit Lodge, Station Hotel, Seaview Hotel
Library | 09:00-19:00 | Alderford Library, Briar Library, Ridge Library, Reading Room, Haven Library
School | 08:00-16:00 | Alder High School, Falls School, Ridge Academy, Dunmere College, Sea School
Supermarket | 07:00-22:00 | Fresh Basket, Falls Market, Hilltop Foods, Green Grocer, Bay Market
Bus Station | 05:00-23:30 | Alder Terminal, Falls Stop, Ridge Transit, Dunmere Central, Haven Coach
Park | 06:00-21:00 | Founders Park, Waterfall Gardens, Lookout Park, Rose Garden, Lighthouse Park
Hospital | 00:00-24:00 | Saint Brigid, Falls Clinic, Camden Memorial, Infirmary, Bay Hospital
Gas Station | 06:00-24:00 | Route 9 Fuel, Quick Stop, Mountain Gas, Crossroads Fuel, Coastal Fuel
""")
