"""The command line: words for people, one file a command. It decides nothing that packages below it could decide."""
