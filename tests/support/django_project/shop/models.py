"""The shop's table."""

from django.db import models


class Order(models.Model):
    name = models.TextField()
    is_shipped = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"
