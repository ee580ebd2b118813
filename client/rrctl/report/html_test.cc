#include "client/rrctl/report/html.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

TEST(HtmlTest, MarkupIsText) {
  EXPECT_EQ(HtmlText("<b>&\"'\x01"), "&lt;b&gt;&amp;&quot;&#39;\\x01");
  EXPECT_EQ(HtmlText("a\xff"), "a\\xFF");
  EXPECT_EQ(HtmlText("é"), "é");
}

TEST(HtmlTest, NothingEndsAScript) {
  const Document document = {{"</script><script>alert(1)", "<!--\u2028"}};
  const std::string json = ScriptJson(document);
  EXPECT_EQ(json.find('<'), json.npos);
  EXPECT_EQ(Document::parse(json), document);
}

TEST(HtmlTest, ValuesAreNotFilledAgain) {
  EXPECT_EQ(FillTemplate("{{a}} {{b}} {{c}}", {{"a", "{{b}}"}, {"b", "2"}}), "{{b}} 2 {{c}}");
}

}  // namespace
}  // namespace routing_replay::client
