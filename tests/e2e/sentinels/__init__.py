"""Tests of one service whose Redis has Sentinels; its start takes longer than most of them."""
