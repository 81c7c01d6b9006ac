"""Programs that have changed published records once, each with its reason. They stay here so that
anybody can repeat them; nothing imports them but the tests."""
