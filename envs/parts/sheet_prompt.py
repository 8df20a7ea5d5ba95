"""What AgentGym's client of sheet tells a model, word for word: see agentgym.py."""
from envs.parts.tool_prompt import rules

P = "Parameters:"
SHEET_BACK = "Returns:\n- result (Type: object): The updated worksheet data or an error message."
DID = "Returns:\n- result (Type: object): Whether the operation was successful."
OPERATOR = "- operator (Type: string): The operator to be applied on selected cells. Choose one " \
    "from ['SUM', 'AVERAGE', 'COUNT', 'MAX', 'MIN', 'MINUS', 'PRODUCT']."
CELLS = (P, "- start_position (Type: string): The starting position of the range. Default: 'B1'.",
         "- end_position (Type: string): The ending position of the range. Default: 'D2'.",
         "- position_list (Type: array[string]): A list of cell positions in A1 notation.")
EITHER = "Note: Either specify position_list or start_position and end_position."
RULES = rules([
    ("open_sheet(name)", "Open a sheet by name", P,
     "- name (Type: string): The name of the sheet to open.",
     "Returns:\n- result (Type: object): The opened worksheet object or an error message."),
    ("del_sheet(name)", "Deletes the specified sheet.", P,
     "- name (Type: string): The name of the sheet to be deleted.", DID),
    ("freeze_data(dimension, num)", "Freeze rows and/or columns on the worksheet", P,
     "- dimension (Type: string): The dimension to freeze, either 'rows' or 'columns'",
     "- num (Type: integer): Number of rows/cols to freeze.", DID),
    ("get_A1_annotation(row, col)", "Translate the cell position (row,col) into A1 annotation", P,
     "- row (Type: integer): Row index.", "- col (Type: integer): Column index.",
     "Returns:\n- result (Type: string): The A1 notation of the cell or an error message."),
    ("insert_cols(values_list, col_idx)", "Insert columns into sheet at specified column index", P,
     "- values_list (Type: array[array[string]]): A list of lists, each list containing one "
     "column's values, which can be expressions",
     "- col_idx (Type: integer): Start column to update. Defaults to 1.", SHEET_BACK),
    ("insert_rows(values_list, row_idx)", "Insert rows into sheet at specified row index", P,
     "- values_list (Type: array[array[string]]): A list of lists, each list containing one row's "
     "values, which can be expressions",
     "- row_idx (Type: integer): Start row to update. Defaults to 1.", SHEET_BACK),
    ("delete_batch_data(dimension, index_list)", "Delete a batch of data in the sheet", P,
     "- dimension (Type: string): The dimension to delete, either 'row' or 'col'.",
     "- index_list (Type: array[integer]): List of the indexes of rows/cols for deletion.",
     SHEET_BACK),
    ("update_cell(position, value)", "Update the value of the cell", P,
     "- position (Type: string): A1 notation of the cell position.", "- value: The value to set.",
     SHEET_BACK),
    ("update_cell_by_formula(start_position, end_position, position_list, result_position, "
     "operator)", "Update the value of the target cell by applying formulas on some specified "
     f"cells. {EITHER}", *CELLS, "- result_position (Type: string): The position of the cell where "
     "the result of the formula will be stored in. Default: 'G2'.", OPERATOR, SHEET_BACK),
    ("update_range(start_position, end_position, values_list)",
     "Update a range of the cells from a list", P,
     "- start_position (Type: string): A1 notation of the start cell.",
     "- end_position (Type: string): A1 notation of the end cell.",
     "- values_list (Type: array[array[Any]]): List of values to be inserted, which can be "
     "expressions", SHEET_BACK),
    ("sort_sheet_by_col(col_num, order)", "Sorts the current sheet using given sort orders", P,
     "- col_num (Type: integer): The index of the sort column.",
     "- order (Type: string): The sort order. Possible values are 'asc' or 'des'.", SHEET_BACK),
    ("merge_cells(start_position, end_position)", "Merge cells in sheet", P,
     "- start_position (Type: string): Starting cell position(top left) in A1 annotation.",
     "- end_position (Type: string): Ending cell position(bottom right) in A1 annotation.",
     SHEET_BACK),
    ("update_note(position, content)", "Update a note in a certain cell", P,
     "- position (Type: string): cell position in A1 annotation.",
     "- content (Type: string): The text note to insert.",
     "Returns:\n- result (Type: string): The updated note or an error message."),
    ("get_all_values()", "Display all cell values in current sheet",
     "Returns:\n- result (Type: array[array[Any]]): Return all cell values or an error message."),
    ("get_range_values(start_position, end_position)",
     "Returns a list of cell data from a specified range.", P,
     "- start_position (Type: string): Starting cell position in A1 annotation.",
     "- end_position (Type: string): Ending cell position in A1 annotation.",
     "Returns:\n- result (Type: array[array[Any]]): List of cell data from the specified range or "
     "an error message."),
    ("get_cell_value(position)", "Get the value of a specific cell", P,
     "- position (Type: string): Cell position in A1 annotation.",
     "Returns:\n- result : Cell value or an error message."),
    ("get_value_by_formula(start_position, end_position, position_list, operator)",
     f"Calculate a value applying formulas on specified cells. {EITHER}", *CELLS, OPERATOR,
     "Returns:\n- result (Type: string): Calculated result or an error message."),
    ("filter_cells(query, in_row, in_column)",
     "Find all cells matching the query, return all cells' position.", P,
     "- query (Type: ['string', 're.RegexObject']): A string to match or compiled regular "
     "expression.", "- in_row (Type: ['integer', 'None']): Row number to scope the search. Default "
     "is all rows", "- in_column (Type: ['integer', 'None']): Column number to scope the search. "
     "Default is all columns", "Returns:\n- result (Type: array[string]): List of cell addresses "
     "that match the query or an error message."),
    ("get_note(position)", "Get the note at the certain cell, or return empty string if the cell "
     "does not have a note.", P, "- position (Type: string): Cell position in A1 annotation.",
     "Returns:\n- result (Type: string): Note content or an error message."),
    ("finish()", "Return an answer and finish the task",
     "Returns:\n- result (Type: array[array[Any]]): Return all cell values or an error message."),
], """\
Here are some common senses you may need: \n\
1.You should open sheet mentioned in goal before operating it
2.You should use A1 notation to display the cell position in the sheet.
3.The col and row are start with 1
4.freeze the first row before sort col

Please first open the sheet! Check the sheet content by get_all_values first! If you are finished, \
you will call "finish" action.
""", """\
Goal: "Sheet90" saves the clothing inventory information, please delete items with price changed \
by more than 25%, update the price of other items.
Thought: I will complete the goal in "Sheet90".

Action: open_sheet with Action Input:{"name": "Sheet90"}
Observation: You have open the {sheet_name}
Thought: I need to retrieve the inventory from "Sheet90" to identify which items' price changes \
exceeding 25%

Action: get_all_values with Action Input: {}
Observation: [['Category', 'Brand', 'Size', 'Price', 'Stock', 'Price Update'], ['T-shirt', 'Nike', \
'M', '25.00', '100', '20.00%'], ['Jeans', "Levi's", '32', '59.00', '150', '-10.00%'], ['Shoes', \
'Adidas', '8', '99.00', '80', '-45.00%'], ['Bags', 'Louis Vuitton', 'Universal', '699.00', '20', \
'30.00%'], ['Watches', 'Omega', 'Universal', '999.00', '10', '56.00%']]
Thought: The items with price changes of more than 20% are "Shoes", "Bags" and "Watches", so I \
will delete the records for these items.

Action: delete_batch_data with Action Input: {"dimension": "row", "index_list": [3, 4, 5]}
Observation: [['Category', 'Brand', 'Size', 'Price', 'Stock', 'Price Update'], ['T-shirt', 'Nike', \
'M', '25.00', '100', '20.00%'], ['Jeans', "Levi's", '32', '59.00', '150', '-10.00%']]
Thought: It seems delete successfully, the next step is to calculate the changed prices of \
remaining items by using the provided formula "PRODUCT" and we calculate "T-shirt" first.

Action: get_value_by_formula with Action Input: {"position_list": ["D2", "F2"], operator="PRODUCT"}
Observation: 5
Thought: Calculate the changed prices of "Jeans" by using a formula "PRODUCT".

Action: get_value_by_formula with Action Input: {"position_list": ["D3", "F3"], operator="PRODUCT"}
Observation: -5.9
Thought: We have calculated the changed price, we can update the price column at once

Action: update_range with Action Input: {"start_position": "D2", "end_position": "D3", \
values_list=[[25.00 + 5, 59.00 - 5.9]]}
Observation: [['Category', 'Brand', 'Size', 'Price', 'Stock', 'Price Update'], ['T-shirt', 'Nike', \
'M', '30.00', '100', '20.00%'], ['Jeans', "Levi's", '32', '53.10', '150', '-10.00%']]
Thought: After I check the result, it seems update successfully. we could call "finish"

Action: finish with Action Input: {}
Observation: [['Category', 'Brand', 'Size', 'Price', 'Stock', 'Price Update'], ['T-shirt', 'Nike', \
'M', '30.00', '100', '20.00%'], ['Jeans', "Levi's", '32', '53.10', '150', '-10.00%']]
""")
