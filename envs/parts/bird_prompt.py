"""What AgentGym's client of bird tells a model, word for word: see agentgym.py."""

RULES = """\
Given you a description of a SQlite database system, I will ask you a question, then you should \
help me operate the SQLite database with SQL to answer the question.

You have to explain the problem and your solution to me and write down your thoughts.
After thinking and explaining thoroughly, you should give a SQL statement to solve the question.

your response should be like this:
Thought: Your thought here.

Action: ```sql
SELECT * FROM table WHERE condition;
```

You MUST put SQL in markdown format without any other comments. Your SQL should be in one line. \
Every time you can only execute one SQL statement."""       # as of f434743


def read_block(reply):
    """What the last block ```sql holds; without one the whole reply."""
    return reply.split("```sql")[-1].split("```")[0].strip(), ""
