<prompt schema="persona">
  <teenager/>
  <middle-school/>
  <by-seeing/>
  <curious/>
  <heard-of-it/>
  <music/>
  <five-minutes/>
  <plain/>
  <second-language/>
  <to-teach/>
  <user>Why does the moon change its shape in the course of a month?</user>
</prompt>
