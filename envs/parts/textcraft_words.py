"""What textcraft names the items of its worlds after."""

FAMILY_FORMS = (   # materials; raw forms; two classes, whose members are made of the first form
    ("ash cedar elm maple pine", "log bark seed resin", "plank pole"),
    ("cobalt copper nickel tin zinc", "ore dust grain slag", "ingot nail"),
    ("basalt granite marble slate flint", "rock gravel grit pebble", "brick tile"),
    ("cotton flax hemp jute silk", "fibre fluff stem husk", "thread cloth"),
    ("amber jade onyx opal topaz", "shard crystal sand chip", "bead lens"),
    ("blue green red white yellow", "petal berry leaf root", "dye ink"),
)
GOODS = ("arrow axe bell boat bow box bridge cart chair chest crate door drum gate helmet hoe "
         "ladder lamp mask ring shield stool table tower wheel")
SMALL_RAW = (
    "apple berry bone chalk clay coal copper corn egg fish flax flint hide honey iron milk mint "
    "moss reed resin salt sand shell silk stone straw wax wheat wood wool")
SMALL_GOODS = (
    "basket brick butter button candle charcoal cheese cloth dough dye felt flour glass glue ink "
    "jam leather nail needle oil paint paper plank rope soap thread tile wire "
    "bag bell blanket book boot bow bread broom bucket cake chair coat door drum flag hat jar kite "
    "ladder lamp mat mirror net pie pot saddle shelf table tent wheel "
    "bakery barn bed boat bridge cart castle forge house mill oven ship shop tower")
