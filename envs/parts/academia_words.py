"""What academia's papers and organizations are named after."""

METHODS = """Graph Attention|Contrastive Learning|Sparse Coding|Diffusion Models|Tree Search|Beam
Search|Active Learning|Kernel Regression|Message Passing|Federated Averaging|Causal Discovery
|Program Synthesis|Policy Gradients|Spectral Clustering|Prototype Networks|Bayesian Filtering"""
TOPICS = """Traffic Forecasting|Protein Folding|Speech Translation|Wildfire Detection|Crop Mapping
|Question Answering|Robot Grasping|Fraud Detection|Image Captioning|Music Tagging|Drug Discovery
|Eye Tracking|Load Prediction|Contract Analysis|Medical Triage|Code Review"""
SHAPES = ("{a} for {b}", "Towards Robust {b} with {a}", "From {a} to {b}", "Rethinking {a} in {b}",
          "A Survey of {a} for {b}", "Scaling {a} to Large {b} Benchmarks", "Fast {b} via {a}",
          "On the Limits of {a} for {b}")
VENUES = {"NeurIPS": "Conference", "ICML": "Conference", "KDD": "Conference", "ACL": "Conference",
          "CVPR": "Conference", "Neural Networks": "Journal", "IEEE Access": "Journal",
          "Machine Learning": "Journal", "Information Sciences": "Journal", "Sensors": "Journal"}
PLACES = "Lund Porto Kyoto Leeds Graz Turin Bergen Ottawa Pune Austin Lyon Busan".split()
FORMS = ("University of {}", "{} Institute of Technology", "{} Research Labs")
