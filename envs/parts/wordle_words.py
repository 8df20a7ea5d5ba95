"""wordle's words: the 40 that are listed in its PROMPT, then all others."""

LISTED = tuple("""
abbey blaze cabin candy chord crane dozen eagle flute frost ghost grape happy igloo jelly knife
lemon lucky maple mercy ninja ocean paint pearl quilt raven rusty shire smoke speed storm tiger
toast umbra unity vivid waltz whale yacht zebra
""".split())

WORDS = LISTED + tuple("""
about above actor acute adapt admit adopt adult after again agent agree ahead alarm album alert
alike alive allow alone along alter amber among ample angel anger angle angry ankle apart apple
apply arena argue arise armor array arrow aside asset audio avoid awake award aware awful bacon
badge baker basic basin beach beard beast begin being below bench berry birth black blade blame
blank blast blend bless blind block blood board bonus boost booth bound brain brake brand brass
brave bread break brick bride brief bring broad broom brown brush build bunch burst cable camel
canal cargo carry catch cause chain chair chalk charm chart chase cheap check cheek cheer chess
chest chief child civic civil claim class clean clear clerk click cliff climb clock close cloth
cloud coach coast color couch count court cover crack craft crash cream creek crime cross crowd
crown cruel curve cycle daily dance dealt death decay delay depth diary dirty ditch dizzy doubt
draft drain drama dream dress drift drill drink drive eager early earth eight elbow elder elect
empty enemy enjoy enter entry equal error essay event every exact exist extra fable faith false
fancy feast fence fever field fifth fight final first flame flash fleet flesh float flock flood
floor flour focus force forge forty found frame fresh front fruit funny giant given glass globe
glory glove grace grain grand grant grass grave great green greet grief group grown guard guess
guest guide habit heart heavy hello hobby honey horse hotel house human humor hurry ideal image
index inner input issue ivory jewel joint judge juice kayak knock label large laser later laugh
layer learn lease leave level light limit linen liver local logic loose lorry lower loyal lunch
magic major march marry match mayor medal melon metal might minor model money month moral motor
mount mouse mouth movie music naive nasty nerve never night noble noise north novel nurse offer
often olive onion opera orbit order organ other outer owner panel panic paper party pasta patch
pause peace penny phone photo piano piece pilot pitch pizza place plain plane plant plate point
porch pound power press price pride prime prize proof proud pupil queen quick quiet radio raise
ranch range rapid reach ready realm rebel reply rider right rival river robin robot rough round
route royal rural salad sauce scale scene scent scope score sense serve seven shade shake shape
share sharp sheep sheet shelf shell shine shirt shock shore short shout sight skill sleep slice
slide small smart smile snake solid sorry sound south space spare spark speak spend spice spoon
sport staff stage stair stamp stand start state steam steel stick stone store story stove straw
study sugar sunny sweet swing sword table teach thank theme thick thing think third throw thumb
tired title today topic total touch tough tower trade trail train treat trend trial tribe trick
truck truly trust truth twice uncle under union until upper upset urban usual valid value video
virus visit voice wagon waste watch water wheel where white whole widow woman world worry worth
wound write wrong young youth
""".split())
