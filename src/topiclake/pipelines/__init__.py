"""What belongs to one story each; everything that two stories share is a module above."""
