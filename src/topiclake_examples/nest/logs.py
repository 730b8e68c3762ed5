"""Logs of Nest devices, generated from a seed: each has the state of all devices of one home.

`log.json` has the values that are the same in all logs, with one device of each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from importlib import resources

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake_examples.sample_rows import hash_random

#: Zip code, city, time zone. A home is in one of them, every second one in the first.
_PLACES = (
    ("94103", "San Francisco", "America/Los_Angeles"),
    ("10001", "New York", "America/New_York"),
    ("94103", "San Francisco", "America/Los_Angeles"),
    ("02108", "Boston", "America/New_York"),
)
#: Where a home's cameras are: it has one, two or three.
_ROOMS = ("Hallway", "Kitchen", "Garden")
_SECOND = 1_000_000


@dataclass(frozen=True)
class NestLogs:
    """Parameters of generated logs; the columns are those of one log, whose number is `id BIGINT`.

    Attributes:
        value_schema: The logs' columns, as DDL.
        timestamp_format: Spark's pattern of their times.
        seed: The same seed generates the same logs.
        logs: Number of logs.
        homes: Number of homes.
        start: Time of the earliest log.
        minutes: Length of the period over which the logs are spread evenly.
        offline: Number of homes whose first camera is offline from the middle of the period on.
    """

    value_schema: str
    timestamp_format: str
    seed: int
    logs: int
    homes: int
    start: datetime
    minutes: int
    offline: int

    @property
    def home(self) -> Column:
        """The home's id."""
        return _home_id(self._home)

    def text(self) -> Column:
        """Return the log as JSON."""
        options = {"timestampFormat": self.timestamp_format, "timeZone": "UTC"}
        template = F.from_json(F.lit(_template()), self.value_schema, options)
        devices = template["devices"]
        log = F.struct(
            template["metadata"].alias("metadata"),
            F.struct(
                F.create_map(self._device("thermostat"), self._thermostat(devices)).alias("thermostats"),
                F.create_map(self._device("alarm"), self._alarm(devices)).alias("smoke_co_alarms"),
                self._cameras(devices).alias("cameras"),
                F.create_map(self._device("meter"), self._meter(devices)).alias("companyName"),
            ).alias("devices"),
            F.create_map(self.home, self._structure(template)).alias("structures"),
        )
        return F.to_json(log, options)

    @property
    def _home(self) -> Column:
        return hash_random("home", self.seed, self.homes).cast("int")

    @property
    def _at(self) -> Column:
        """Return when the log was written."""
        return self._time_after(F.floor(F.col("id") * self.minutes * 60 * _SECOND / max(self.logs, 1)))

    @property
    def _half(self) -> Column:
        return self._time_after(F.lit(self.minutes * 30 * _SECOND))

    def _time_after(self, micros: Column) -> Column:
        return F.timestamp_micros(F.lit(round(self.start.timestamp() * _SECOND)) + micros)

    def _device(self, kind: str) -> Column:
        return F.concat(self.home, F.lit(f"-{kind}"))

    def _camera_id(self, number: Column) -> Column:
        return F.concat(self._device("camera-"), number)

    def _thermostat(self, devices: Column) -> Column:
        tenths = hash_random("temperature", self.seed, 60) + 180
        fields = {
            "device_id": self._device("thermostat"),
            "structure_id": self.home,
            "last_connection": self._at,
            "ambient_temperature_c": tenths / 10,
            "ambient_temperature_f": F.round(tenths * 0.18 + 32),
            "humidity": (hash_random("humidity", self.seed, 40) + 30).cast("double"),
            "hvac_state": F.when(tenths < 215, "heating").otherwise("off"),
        }
        return _changed(devices["thermostats"]["one"], fields)

    def _alarm(self, devices: Column) -> Column:
        fields = {
            "device_id": self._device("alarm"),
            "structure_id": self.home,
            "last_connection": self._at,
        }
        return _changed(devices["smoke_co_alarms"]["one"], fields)

    def _meter(self, devices: Column) -> Column:
        fields = {
            "identification.device_id": self._device("meter"),
            "identification.serial_number": F.upper(F.left(F.md5(self.home), F.lit(8))),
            "location.structure_id": self.home,
            "resource_use.electricity.value": hash_random("used", self.seed, 5_000).cast("double"),
            "resource_use.electricity.measurement_time": self._at,
        }
        return _changed(devices["companyName"]["one"], fields)

    def _cameras(self, devices: Column) -> Column:
        def entry(number: Column) -> Column:
            return F.struct(self._camera_id(number), self._camera(devices, number))

        return F.map_from_entries(F.transform(_camera_numbers(self._home), entry))

    def _camera(self, devices: Column, number: Column) -> Column:
        has_failed = (self._home < self.offline) & (number == 1) & (self._at >= self._half)
        room = F.get(F.array(*map(F.lit, _ROOMS)), number - 1)
        fields = {
            "device_id": self._camera_id(number),
            "structure_id": self.home,
            "where_id": F.concat(F.lit("where-"), F.lower(room)),
            "where_name": room,
            "name": room,
            "name_long": F.concat(room, F.lit(" Camera")),
            "is_online": ~has_failed,
            "is_streaming": ~has_failed,
            "last_is_online_change": F.when(has_failed, self._half).otherwise(self._time_after(F.lit(0))),
            "last_event.has_sound": hash_random("sound", self.seed, 3, number) == 0,
            "last_event.has_person": (hash_random("person", self.seed, 2, number) == 0) & ~has_failed,
            # Within the minute before the log.
            "last_event.start_time": self._at
            - F.make_dt_interval(secs=hash_random("seen", self.seed, 60, number)),
            "last_event.end_time": self._at,
        }
        return _changed(devices["cameras"]["one"], fields)

    def _structure(self, template: Column) -> Column:
        place = _place(self._home)
        fields = {
            "structure_id": self.home,
            "postal_code": place["zip"],
            "time_zone": place["zone"],
            "away": F.when(hash_random("away", self.seed, 2) == 0, "away").otherwise("home"),
            "thermostats": F.array(self._device("thermostat")),
            "smoke_co_alarms": F.array(self._device("alarm")),
            "cameras": F.transform(_camera_numbers(self._home), self._camera_id),
        }
        return _changed(template["structures"]["home"], fields)


def location_lines(spark: SparkSession, homes: int) -> DataFrame:
    """Return the places of the cameras of a number of homes.

    Returns:
        `key STRING, value BINARY`: the camera's id, and a line as `nest_locations` reads it.
    """
    home, place = F.col("id").cast("int"), _place(F.col("id"))
    camera = F.explode(_camera_numbers(home)).alias("camera")
    rows = spark.range(homes).select(_home_id(home).alias("home"), place.alias("place"), camera)
    device = F.concat("home", F.lit("-camera-"), "camera")
    line = F.concat_ws(";", device, "place.zip", "place.city")
    return rows.select(device.alias("key"), F.encode(line, "ISO-8859-1").alias("value"))


def _template() -> str:
    return resources.files(__package__).joinpath("log.json").read_text(encoding="utf-8")


def _home_id(home: Column) -> Column:
    return F.format_string("home-%04d", home)


def _camera_numbers(home: Column) -> Column:
    return F.sequence(F.lit(1), home % len(_ROOMS) + 1)


def _place(home: Column) -> Column:
    places = [F.struct(*map(F.lit, place)) for place in _PLACES]
    chosen = F.get(F.array(*places), (home % len(_PLACES)).cast("int"))
    return chosen.cast("STRUCT<zip: STRING, city: STRING, zone: STRING>")


def _changed(template: Column, fields: dict[str, Column]) -> Column:
    return reduce(lambda changed, field: changed.withField(*field), fields.items(), template)
