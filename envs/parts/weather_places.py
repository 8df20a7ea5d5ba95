"""Cities for weather: name, latitude, longitude, country, metres above the sea."""

PLACES = """London 51.51 -.13 GB 25,Paris 48.85 2.35 FR 42,Berlin 52.52 13.41 DE 74,Rome 41.89 12.51
IT 20,Madrid 40.42 -3.7 ES 665,Oslo 59.91 10.75 NO 26,Lisbon 38.72 -9.13 PT 45,Dublin 53.33 -6.25 IE
17,Athens 37.98 23.73 GR 41,Warsaw 52.23 21.01 PL 113,Prague 50.09 14.42 CZ 202,Zurich 47.37 8.55 CH
429,Reykjavik 64.14 -21.9 IS 37,Istanbul 41.01 28.95 TR 39,Tbilisi 41.69 44.83 GE 491,Cairo 30.06
31.25 EG 23,Nairobi -1.28 36.82 KE 1669,Lagos 6.45 3.39 NG 11,Cape Town -33.93 18.42 ZA 24,Accra
5.56 -.2 GH 58,Addis Ababa 9.02 38.75 ET 2405,Dubai 25.07 55.17 AE 22,Tehran 35.69 51.42 IR 1179,
Delhi 28.65 77.23 IN 227,Kathmandu 27.7 85.32 NP 1317,Bangkok 13.75 100.5 TH 12,Singapore 1.29
103.85 SG 15,Manila 14.6 120.98 PH 13,Shanghai 31.22 121.46 CN 8,Beijing 39.91 116.4 CN 49,Seoul
37.57 126.98 KR 38,Tokyo 35.69 139.69 JP 44,Ulaanbaatar 47.91 106.88 MN 1297,Sydney -33.87 151.21 AU
59,Auckland -36.85 174.76 NZ 29,Anchorage 61.22 -149.9 US 40,Toronto 43.7 -79.42 CA 175,Seattle
47.61 -122.33 US 56,Denver 39.74 -104.98 US 1609,Chicago 41.85 -87.65 US 180,Boston 42.36 -71.06 US
14,New York 40.71 -74.01 US 9,Miami 25.77 -80.19 US 2,Phoenix 33.45 -112.07 US 366,Mexico City 19.43
-99.13 MX 2240,Havana 23.13 -82.38 CU 60,Bogota 4.61 -74.08 CO 2582,Quito -.23 -78.52 EC 2854,Lima
-12.04 -77.03 PE 161,La Paz -16.5 -68.15 BO 3782,Santiago -33.46 -70.65 CL 556,Montevideo -34.9
-56.19 UY 34,Brasilia -15.78 -47.93 BR 1130,Porto 41.15 -8.61 PT 83"""
