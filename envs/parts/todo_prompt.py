"""What AgentGym's client of todo tells a model, word for word: see agentgym.py."""
from envs.parts.tool_prompt import rules

TASK_ID = "Parameters:\n- task_id (Type: string)"
RULES = rules([
    ("get_user_current_date()", "Get the user's current date.",
     "Returns:\nThe current date in 'YYYY-MM-DD' format."),
    ("get_user_current_location()", "Get the user's current city.",
     "Returns:\nThe user's current city."),
    ("get_projects()", "Get all projects in the Todoist account",
     "Returns:\n- Array of objects with properties:", "  - id (Type: string)",
     "  - name (Type: string)", "  - order (Type: integer)", "  - color (Type: string)",
     "  - is_favorite (Type: boolean)"),
    ("update_project(project_id, is_favorite)", "Update a project",
     "Parameters:\n- project_id (Type: string)",
     "- is_favorite (Type: string, Enum: [True, False])",
     "Returns:\nInformation of the updated project"),
    ("get_tasks(project_id)", "Get all tasks for a given project",
     "Parameters:\n- project_id (Type: string)",
     "Returns:\n- Array of objects with properties:", "  - id (Type: string)",
     "  - project_id (Type: \u201dstring)", "  - order (Type: integer)",
     "  - content (Type: string): Name of the task.", "  - is_completed (Type: boolean)",
     "  - priority (Type: integer): Task priority from 1 (normal) to 4 (urgent).",
     "  - due_date (Type: string): The due date of the task."),
    ("get_task_description(task_id)",
     "Get the description of a specific task in the Todoist account.", TASK_ID,
     "Returns:\n- id (Type: string): Unique identifier of the task.",
     "- content (Type: string): Name of the task.",
     "- description (Type: string): Description of the task. Incluing the Place, Tips, etc."),
    ("get_task_duration(task_id)", "Get the duration of a specific task in the Todoist account.",
     TASK_ID, "Returns:\n- id (Type: string)", "- content (Type: string): Name of the task.",
     "- duration (Type: string): Duration of the task in the format of 'amount(unit)'."),
    ("complete_task(task_id)", "Mark a task as completed", TASK_ID,
     "Returns:\ninformation of the completed task"),
    ("update_task(task_id, due_date)", "Update a task", TASK_ID, "- due_date (Type: string)",
     "Returns:\nInformation of the updated task"),
    ("delete_task(task_id)", "Delete a specific task from the Todoist account.",
     f"{TASK_ID}: Unique identifier of the task to delete.",
     "Returns:\nInformation of the deleted task."),
    ("check_valid_actions()", "Get supported actions for current tool.",
     "Returns:\nSupported actions for current tool."),
    ("finish(answer)", "Call this action, when find the answer for the current task or complete "
     "essential operations.", "Parameters:\n- answer (Type: ['string', 'number', 'array']): If the "
     "task is a question answering task, this is the answer to be returned. If the task is an "
     "operation task, the answer in 'done'")], """\
If you want to get the project_id or task_id, please call "get_projects" or "get_tasks". Do not \
generate it by yourself which maybe wrong. If you are finished, you will call "finish" action. \n\
""", """\
Goal: Is Prepare for history quiz a task of School project? Please answer yes or no.
Thought: To check whether Prepare for history quiz is a task of School project. I should first get \
the project id of School.

Action: get_projects with Action Input: {}
Observation: [{'id': '12345', 'order': 0, 'color': 'charcoal', 'name': 'School', 'is_favorite': \
false}]
Thought: From the result, the project id of School is 12345, then I can get all tasks of this \
project. And check whether Prepare for history quiz is in the result.

Action: get_tasks with Action Input: {"project_id": "12345"}
Observation: [{'id': '123451', 'order': 0, 'content': 'Prepare for history quiz', 'is_completed': \
false, 'priority': 1, 'due_date': '2030-10-10'}, {'id': '123452', 'order': 1, 'content': 'Prepare \
for math quiz', 'is_completed': false, 'priority': 1, 'due_date': '2030-11-10'}]
Thought: Prepare for history quiz is in the result, so it is a task of School project. I will call \
action: finish to terminate the conversation.

Action: finish with Action Input: {"answer": "yes"}
Observation: yes
""")
