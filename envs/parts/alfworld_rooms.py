"""What alfworld furnishes its houses with."""

ROOMS = {   # room -> receptacles, the fewest and most of each; the kinds of things kept there
    "kitchen": (
        "cabinet 2-6 drawer 1-4 countertop 1-2 stoveburner 2-4 shelf 0-2 diningtable 0-1 "
        "fridge 1-1 microwave 1-1 sinkbasin 1-1 coffeemachine 1-1 toaster 1-1 garbagecan 1-1",
        "apple bowl bread butterknife cup dishsponge egg fork kettle knife ladle lettuce mug pan "
        "peppershaker plate pot potato saltshaker soapbottle spatula spoon tomato winebottle"),
    "livingroom": (
        "sofa 1-2 armchair 1-2 coffeetable 1-2 sidetable 1-3 shelf 2-3 drawer 3-5 desk 0-1 "
        "cabinet 1-3 tvstand 1-1 dresser 0-1 safe 0-1 garbagecan 1-1",
        "book box candle creditcard keychain laptop newspaper pillow remotecontrol statue vase "
        "watch"),
    "bedroom": (
        "bed 1-1 desk 1-2 dresser 1-1 sidetable 1-2 shelf 3-5 drawer 4-7 cabinet 0-2 safe 0-1 "
        "armchair 0-1 laundryhamper 0-1 garbagecan 1-1",
        "alarmclock book cd cellphone cloth creditcard keychain laptop mug pen pencil pillow "
        "watch"),
    "bathroom": (
        "cabinet 3-5 drawer 1-4 countertop 1-2 shelf 1-2 sinkbasin 1-2 toilet 1-1 towelholder 1-2 "
        "toiletpaperhanger 1-1 handtowelholder 1-2 cart 0-1 bathtubbasin 0-1 garbagecan 1-1",
        "candle cloth handtowel soapbar soapbottle spraybottle toiletpaper towel")}
# thing -> where it may be put, likeliest first: houses are furnished and searched in this order
PLACES = {thing: places.split() for things, places in (
    ("apple bread potato tomato", "countertop diningtable fridge sinkbasin microwave garbagecan"),
    ("egg lettuce", "fridge countertop diningtable sinkbasin microwave garbagecan"),
    ("bowl cup plate", "cabinet countertop shelf diningtable sinkbasin microwave fridge"),
    ("mug", "coffeemachine cabinet countertop desk shelf sidetable sinkbasin microwave fridge"),
    ("winebottle", "fridge countertop diningtable cabinet garbagecan"),
    ("kettle pan pot", "stoveburner countertop cabinet diningtable sinkbasin"),
    ("butterknife fork knife ladle spatula spoon", "drawer countertop diningtable sinkbasin"),
    ("peppershaker saltshaker", "countertop cabinet drawer shelf diningtable"),
    ("dishsponge soapbar", "sinkbasin bathtubbasin countertop drawer cabinet toilet garbagecan"),
    ("candle soapbottle spraybottle", "countertop toilet cabinet cart shelf coffeetable drawer"),
    ("book laptop", "desk bed sofa shelf coffeetable sidetable dresser drawer"),
    ("pillow", "bed sofa armchair"),
    ("box newspaper remotecontrol", "coffeetable sofa sidetable tvstand armchair dresser cabinet"),
    ("statue vase", "shelf sidetable coffeetable dresser tvstand desk cabinet safe"),
    ("creditcard keychain watch", "drawer sidetable desk dresser shelf coffeetable tvstand safe"),
    ("alarmclock cd cellphone pen pencil", "desk sidetable shelf dresser drawer bed garbagecan"),
    ("cloth handtowel", "handtowelholder cabinet countertop sinkbasin laundryhamper drawer bed"),
    ("towel", "towelholder bathtubbasin countertop cabinet cart"),
    ("toiletpaper", "toiletpaperhanger toilet cabinet drawer countertop cart garbagecan"),
    ("desklamp", "desk sidetable dresser shelf")) for thing in things.split()}
