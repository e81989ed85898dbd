"""The project's views."""

from django.contrib import admin
from django.urls import include, path

from tests.support.django_project.shop import views

urlpatterns = [
    path("order/<str:name>", views.order),
    path("admin/", admin.site.urls),
    path("pgbeat/", include("pgbeat.integrations.django.urls")),
]
