"""URLs of the console and the API, for `include("pgbeat.integrations.django.urls")`."""

from django.urls import re_path

from pgbeat.integrations.django.console import console

app_name = "pgbeat"
urlpatterns = [re_path(r"^(?P<path>.*)$", console, name="console")]
