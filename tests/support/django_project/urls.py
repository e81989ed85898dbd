"""The project's views."""

from django.urls import path

from tests.support.django_project.shop import views

urlpatterns = [path("order/<str:name>", views.order)]
