<prompt schema="trip">
  <plan city="Lisbon" duration="three days" travellers="two adults and a girl of six" budget="120 euros"/>
  <family/>
  <spring-or-autumn/>
  <food><vegetarian/></food>
  <getting-around><by-transit/></getting-around>
  <user>Make a plan for the whole trip. Begin with the day of arrival; we land at noon.</user>
</prompt>
