#include "server/security/tickets.h"

#include <gtest/gtest.h>

#include "proto/wire/clock.h"

namespace routing_replay::server {
namespace {

TEST(TicketsTest, ATicketStandsForItsTokenUntilItExpires) {
  ManualClock clock;
  Tickets tickets(clock);
  const Tickets::Ticket ticket = tickets.Issue("tok");
  EXPECT_EQ(ticket.secret.size(), 16u);
  EXPECT_EQ(tickets.TokenOf(ticket.secret), "tok");
  EXPECT_EQ(tickets.TokenOf(std::string(16, 'x')), std::nullopt);
  EXPECT_EQ(tickets.TokenOf(""), std::nullopt);
  clock.Advance(Tickets::kLife - std::chrono::seconds(1));
  EXPECT_EQ(tickets.TokenOf(ticket.secret), "tok");
  clock.Advance(std::chrono::seconds(1));
  EXPECT_EQ(tickets.TokenOf(ticket.secret), std::nullopt);
}

TEST(TicketsTest, WhoAsksOftenGetsTheSameOneForHalfItsLife) {
  ManualClock clock;
  Tickets tickets(clock);
  const std::string first = tickets.Issue("tok").secret;
  EXPECT_NE(tickets.Issue("other").secret, first);
  clock.Advance(Tickets::kLife / 2);
  EXPECT_EQ(tickets.Issue("tok").secret, first);
  clock.Advance(std::chrono::seconds(1));
  const std::string second = tickets.Issue("tok").secret;
  EXPECT_NE(second, first);
  EXPECT_EQ(tickets.TokenOf(first), "tok");
  EXPECT_EQ(tickets.TokenOf(second), "tok");
}

}  // namespace
}  // namespace routing_replay::server
