<prompt schema="code">
  <unit.py/>
  <map.py/>
  <player.py/>
  <game.py/>
  <user>Add a method "repair" to the class Boat: it costs one unit of cargo, adds one point of hull up to three, and
returns whether it worked. Write the method.</user>
</prompt>
