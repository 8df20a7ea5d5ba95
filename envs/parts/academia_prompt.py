"""What AgentGym's client of academia tells a model, word for word: see agentgym.py."""
from envs.parts.tool_prompt import FINISH, rules

RULES = rules([
    ("loadPaperNet()", "Load PaperNet. In this net, nodes are papers and edges are citation "
     "relationships between papers."),
    ("loadAuthorNet()", "Load AuthorNet. In this net, nodes are authors and edges are "
     "collaboration relationships between authors."),
    ("neighbourCheck(graph, node)", "List the first-order neighbors connect to the node. In "
     "paperNet, neigbours are cited papers of the paper. In authorNet, neigbours are collaborators "
     "of the author.", "Parameters:",
     "- graph (Type: string, Enum: [PaperNet, AuthorNet]): The name of the graph to check",
     "- node (Type: string): The node for which neighbors will be listed",
     "Returns:\n- neighbors (Type: array)"),
    ("paperNodeCheck(node)", "Return detailed attribute information of a specified paper in "
     "PaperNet", "Parameters:\n- node (Type: string): Name of the paper.", "Returns:",
     "- authors : The authors of the paper", "- year : The puslished year of the paper",
     "- venue : The published venue of the paper",
     "- n_citation : The number of citations of the paper",
     "- keywords : The keywords of the paper", "- doc_type : The document type of the paper"),
    ("authorNodeCheck(node)", "Return detailed attribute information of a specified author in "
     "AuthorNet", "Parameters:\n- node (Type: string): name of the author.", "Returns:",
     "- name : The name of the author", "- org : The organization of the author"),
    ("authorEdgeCheck(node1, node2)", "Return detailed attribute information of the edge between "
     "two specified nodes in a AuthorNet.", "Parameters:",
     "- node1 (Type: string): The first node of the edge",
     "- node2 (Type: string): The second node of the edge", "Returns:",
     "- papers : All papers that the two authors have co-authored"), FINISH], """\
You should call loadPaperNet or loadAuthorNet first! If you are finished, you will call "finish" \
action.
""", """\
Goal: When was the paper Learning the Principle of Least Action with Reinforcement Learning. \
published?
Thought: The question is asking some basic information of a paper. I need to load the paper graph.

Action: loadPaperNet with Action Input: {}
Observation: PaperNet is loaded.
Thought: The question is asking the published date of a paper, we need to check the node from the \
PaperNet.

Action: paperNodeCheck with Action Input: {"node":"Learning the Principle of Least Action with \
Reinforcement Learning."}
Observation: {'year': 2021, 'venue': 'AAAI Spring Symposium - MLPS', 'n_citation': 0, 'keywords': \
[], 'doc_type': 'Conference'}
Thought: The published date of the paper is 2021.

Action: finish with Action Input: {"answer": "2021"}
Observation: 2021
""")
