"""Days of the Gregorian calendar."""

MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and year % 100 != 0


def days_in_month(year, month):
    if not 1 <= month <= 12:
        raise ValueError(f"month {month} is not in 1..12")
    return 29 if month == 2 and is_leap(year) else MONTH_DAYS[month - 1]


def day_of_year(year, month, day):
    if not 1 <= day <= days_in_month(year, month):
        raise ValueError(f"day {day} is not in month {month} of {year}")
    return sum(days_in_month(year, earlier) for earlier in range(1, month)) + day


def days_between(start, end):
    """Days from one (year, month, day) to another; negative if `end` comes first."""
    if tuple(end) < tuple(start):
        return -days_between(end, start)
    total = day_of_year(*end) - day_of_year(*start)
    for year in range(start[0], end[0]):
        total += 366 if is_leap(year) else 365
    return total
