#include "client/rrctl/terminal.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

TEST(TerminalTest, StyleIsNothingWithoutColour) {
  EXPECT_EQ(Style(false).Heading("rows"), "rows");
  EXPECT_EQ(Style(true).Heading("rows"), "\033[1mrows\033[0m");
}

TEST(TerminalTest, ControlCharactersAreShown) {
  EXPECT_EQ(Printable("a\033[2Jb\n"), "a\\x1B[2Jb\\x0A");
  EXPECT_EQ(Printable("größe"), "größe");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "\\xC2\\x9B31m");  // A control sequence of eight bits.
  EXPECT_EQ(Printable("\x9B"
                      "31m\xC2"),
            "\\x9B31m\\xC2");
  EXPECT_EQ(Printable("\xE0\x80\x9B€𝄞"), "\\xE0\\x80\\x9B€𝄞");
}

TEST(TerminalTest, WidthCountsCodePoints) {
  EXPECT_EQ(DisplayWidth("größe"), 5);
  EXPECT_EQ(DisplayWidth(Style(true).Heading("rows")), 4);
}

TEST(TerminalTest, CutsBetweenCodePointsAndEndsSequences) {
  EXPECT_EQ(CutToWidth("größe", 3), "grö");
  EXPECT_EQ(CutToWidth("rows", 4), "rows");
  EXPECT_EQ(CutToWidth(Style(true).Heading("rows"), 4), "\033[1mrows\033[0m");
  EXPECT_EQ(CutToWidth(Style(true).Heading("rows"), 2), "\033[1mro\033[0m");
  EXPECT_EQ(CutToWidth("", 2), "");
}

}  // namespace
}  // namespace routing_replay::client
