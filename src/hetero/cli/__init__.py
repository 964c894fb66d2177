"""The command line: words for people, one file a command. It decides nothing that the rooms below it could decide."""
