"""How many clients, phones and rounds a run can have."""
