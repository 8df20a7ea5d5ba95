"""What todo's accounts are made of. THEMES: a project: the verbs/the things of its tasks."""

THEMES = """Kitchen Renovation: Measure, Order, Compare offers for, Choose the colour of/
 the cabinets, the floor tiles, the sink, the worktop, the window frame
Garden: Prune, Plant, Water, Dig up/
 the roses, the tomatoes, the apple tree, the herb bed, the hedge
Thesis: Print, Rewrite, Proofread, Shorten/
 the introduction, the second chapter, the list of sources, the summary, the appendix
Birthday Party: Pay for, Decide on, Ask Mara about, Compare prices of/
 the cake, the music, the boat trip, the balloons, the garden hall
Moving House: Carry down, Sell, Clean, Get rid of/
 the bookshelf, the piano, the old sofa, the dishes, the winter clothes
Car: Clean, Have someone check, Replace, Photograph/
 the brakes, the roof rack, the tyres, the headlights, the back seats
Language Course: Revise, Read up on, Make cards for, Write a page on/
 the past tense, the irregular verbs, lesson five, the dialogue at the station, the new words
Family: Call, Write to, Visit, Buy a present for/
 grandmother, uncle Theo, the twins, cousin Nadia, aunt Selma
School Play: Rehearse, Paint the scenery of, Sew the costumes for, Film/
 the opening scene, the sword fight, the ball, the last act, the storm
Finances: Check, File, Copy, Dispute/
 the tax notice, the electricity bill, the phone bill, the bank statement, the repair invoice
Bicycle Tour: Look up, Reserve, Tell the others about, Ask about/
 the ferry, the campsite, the mountain hut, the train back, the guided tour
Band: Practise, Arrange, Transcribe, Sing/
 the ballad, the new single, the encore, the slow waltz, the bass line
Newsletter: Draft, Illustrate, Translate, Send out/
 the front page, the interview, the recipe, the events calendar, the letter to our readers
Flat Repairs: Fix, Report, Take a picture of, Get a quote for/
 the dripping tap, the door bell, the cracked pane, the heater, the loose socket
Pets: Feed, Find a sitter for, Weigh, Buy food for/
 the older cat, the rabbit, the parrot, the puppy, the hamster
Science Fair: Build, Test, Label, Write a report on/
 the wind turbine, the volcano model, the solar oven, the seismograph, the water filter
Charity Run: Sign up, Thank, Invite, Remind/
 the sponsors, the first-aid team, the volunteers, the mayor, the timekeepers
Museum Shop: Restock, Count, Price, Display/
 the postcards, the posters, the wooden puzzles, the catalogues, the scarves
Photo Album: Scan, Sort, Retouch, Caption/
 the wedding pictures, the baby photos, the old negatives, the holiday slides, the class portraits
Neighbourhood: Organise, Announce, Tidy up after, Raise money for/
 the street party, the flea market, the tree planting, the book swap, the lantern walk
Job Search: Check, Send, Upload, Print copies of/
 the cover letter, the portfolio, the reference letter, the certificate, the application form"""
PLACES = ("Back Yard", "City Library", "Room 204", "Market Hall", "Community Centre", "Café Orchid",
          "Town Hall", "Riverside Park", "Old Harbour", "Studio B", "Post Office", "Hardware Store")
ITEMS = ("notebook", "gloves", "tape measure", "folder", "camera", "cash", "key", "thermos",
         "boxes", "pen", "receipt", "sandwiches")
TIPS = ("Start early.", "Take a break now and then.", "Ask a friend to help.", "Make a list first.",
        "Check the weather before.", "Do the hard part first.", "Keep the receipts.")
CITIES = ("Oslo", "Porto", "Ghent", "Tartu", "Graz", "Leeds", "Turin", "Lyon", "Cork", "Malmö")
