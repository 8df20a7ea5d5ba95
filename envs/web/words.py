"""What the sites' content is made of. A line's fields stand between bars, its lists have commas."""


def lines_of(text):
    """[[field, ...], ...] of a table's lines."""
    return [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]


FIRST = ("Abel Alma Anton Beatriz Callum Chiara Dara Edwin Elif Esther Farah Felix Gwen Hanna Hector "
         "Ingrid Isaac Jamal Joanna Kofi Leila Linus Magda Marco Mei Naomi Oscar Petra Quentin "
         "Rafael Ruth Selim Tamara Theo Ursula Vera Wanda Yusuf Zoe").split()
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
DESCRIPTIONS = """
Made to be used every day and to look good while it is.|A favorite of our own staff for years.
Designed by a small team and tested for two seasons before it went on sale.|Spare parts are available.
A plain, sturdy design with nothing that can get in the way.|Comes in a box made from recycled paper.
The second generation, improved after what customers told us about the first.|Two years of warranty.
Simple to clean, simple to store, and hard to break.|Makes a good present, too.
""".strip().splitlines()
GOOD = """
Exactly what I hoped for|The {topic} could not be better. I use it nearly every day.
Would buy again|My sister recommended it because of the {topic}, and she was right.
Great value|For this price I expected less. The {topic} in particular surprised me.
Happy customer|Arrived a day early, well packed. I really like the {topic}.
Better than my old one|I compared three of them, and the {topic} decided it. No regrets.
""".strip().splitlines()
MIXED = """
It is fine|Does what it should. The {topic} is nothing special.
Good but not great|I like it on the whole, though the {topic} could be better.
Okay for the money|No complaints about the delivery. The {topic} takes getting used to.
""".strip().splitlines()
BAD = """
Disappointed|The {topic} gave up after two weeks. I am sending it back.
Not as described|In the pictures the {topic} looks quite different. Poor quality for the price.
Would not recommend|I wanted to like it, but the {topic} is a real problem.
Save your money|Customer service was friendly, yet the {topic} never worked for me.
""".strip().splitlines()
