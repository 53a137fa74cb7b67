"""Systems that the method is compared with, each in a file with settings of its own."""
